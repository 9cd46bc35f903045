// Package sampling measures the input of predictions: the contents and writes of this node's containers
// (Samples), the speed of the node (Machine), and the results of past migrations (Experience).
//
// Samples watches a container only while a caller is interested, because watching takes the container's
// processor time. Watching ends when a migration takes over its processes. Nothing here decides or moves
// anything: predict and the callers do. The package knows no engine, no current migration and no other
// node; Node provides what it needs of them.
package sampling
