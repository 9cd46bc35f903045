// Package lab runs several Godwit nodes on one machine, joined by links of a chosen bandwidth, delay and
// loss.
//
// It is for users who want to try Godwit or reproduce a result, and it is the project's testbed. A node is
// a set of namespaces with a small init; a link is a network interface in each of two nodes, with either
// the kernel's netem or our own delay line between them; a client is a network namespace attached to a
// node. In the machine's own network, mount table or process-independent state, a lab shows only the
// directories RunDirectory and StateDirectory and a cgroup. Down finds and removes them, whatever crashed
// before.
//
// The package starts agents as programs: it knows only their command line. It must not import the agent, an
// engine, the migration or the wire protocol.
//
// Some of its work has to run in separate processes (the init of a node, the relay of the links, the
// program that enters a node). They are this same program with a hidden command, so a main function or a
// TestMain calls RunHidden first.
package lab
