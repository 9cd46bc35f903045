// Package bench compares Godwit with other ways to do the same, on this machine.
//
// The suite switchover moves containers in a lab: it runs every way in turn, several times, and takes the
// lab down again, whatever happens. The suite postcopy does the same with programs whose memory follows
// them, and asks them how long they waited. The suite studies does it with the services of four studies,
// each with a client that uses it as a real user would, and puts the studies' own figures beside the
// measurements; package page draws charts of them. The suite engines moves containers of Docker and Podman,
// by Godwit and in these engines' own ways. The suite rounds measures the parts of a pre-copy on processes
// that it starts. The measurements are described as data: scenarios, followings, trials and experiments. A
// result is one flat list of rows, so that a person or a program can compare anything with anything, and a
// list of the requirements of Godwit and whether they are met.
//
// A way that loses data is not measured: clients check every answer, and workloads every page of their
// memory.
//
// The package starts programs and reads their output: it must not import the agent or an engine's
// implementation, so that it measures Godwit as its users have it. The suite rounds uses the packages
// memory and kernel as the agent does.
package bench
