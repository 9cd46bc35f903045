// Package idle measures the cost of an agent that has containers and knows other nodes, but has no work. One
// process simulates the other nodes.
package idle
