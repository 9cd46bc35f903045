// Package pool says which addresses and numbers belong to which node and container, so that all parts of a
// node's network, and all nodes, agree without asking each other.
//
// Each node owns a subnet of the pool. Its containers get their addresses from it, for life: Leases keeps
// them in a file. Hardware addresses, the ends of tunnels, interface groups and marks of packets follow from
// these addresses and numbers. The package changes nothing in the kernel.
package pool
