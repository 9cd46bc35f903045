// Package cluster knows the other nodes: who they are, how to reach them, and what their links carry.
//
// Peers says hello to each of them now and then. What they answer keeps the list of nodes the same
// everywhere, and tells where containers are; what a node says of another one counts only with that one's
// signature. Members does the work of the cluster's authority: it renews certificates, promotes, demotes
// and removes nodes, and leads through a rollover of the authority.
//
// The package moves no container and sets no route. What greetings carry besides, and who hears what they
// bring, are three small interfaces: Containers, Overlay and Events.
package cluster
