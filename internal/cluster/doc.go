// Package cluster knows the other nodes: who they are, how to reach them, and what their links carry.
//
// Peers says hello to each of them at intervals. The answers keep the list of nodes the same everywhere,
// and say where containers are; a node's claim about another node counts only with that node's signature.
// The parts of Peers have locks of their own:
//
//	Nodes     the list of the cluster's nodes, on the disk
//	Contacts  control connections, and what each node last reported
//	Links     what the links carry, by hellos, probes and transfers
//	Overlays  how the nodes send containers' packets, and their keys
//	Hosts     the addresses of nodes that are known by host names
//
// Members does the work of the cluster's authority: it renews certificates, promotes, demotes and removes
// nodes, and directs a rollover of the authority.
//
// The package moves no container and sets no route. Three small interfaces provide the other contents of
// greetings and receive news: Containers, Overlay and Events.
package cluster
