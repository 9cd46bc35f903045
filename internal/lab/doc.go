// Package lab runs several Godwit nodes on one machine, joined by links of a chosen bandwidth,
// delay and loss.
//
// It is for users who want to try Godwit or reproduce a result, and it is the testbed of the
// project. A node is a set of namespaces with a small init; a link is a network interface in each
// of two nodes with either the kernel's netem or a delay line of our own between them; a client is
// a network namespace attached to a node. Nothing of a lab is visible in the machine's own network,
// mount table or process-independent state but the directories RunDirectory, StateDirectory and a
// cgroup, and Down removes those from what it finds, whatever crashed before.
//
// The package starts agents as programs: it knows their command line and no more. It must not
// import the agent, an engine, the migration or the wire protocol.
//
// Some of its work has to happen in processes of its own (the init of a node, the relay of the
// links, the program that enters a node). They are this same program called with a hidden command,
// so a main function or a TestMain calls RunHidden first.
package lab
