// Package sampling measures what predictions are made from: what the containers of this node hold and
// write (Samples), how fast the node is (Machine), and what past migrations took (Experience).
//
// Samples watches a container only while somebody wants to know, because watching it takes its
// processor's time, and ends when a migration takes over its processes. Nothing here decides or moves
// anything: that is for predict and for who asks. The package knows no engine, no migration that is
// under way and no other node; what it needs of them is in Node.
package sampling
