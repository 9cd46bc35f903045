// Package idle measures the cost of an agent that has containers and knows other nodes, but has no work. The
// other nodes are simulated by one process.
package idle
