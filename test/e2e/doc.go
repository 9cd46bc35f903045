// Package e2e tests what users are promised: that a container which is moved between two nodes of a
// lab goes on as if nothing had happened, and that what cannot go on is refused by name before
// anything is touched.
//
// The tests use the program as users do, through its command line, and look at containers from
// inside: the workloads (directory workloads, in C) set up one kind of state each and say
// themselves whether it is still there. They know no package of the implementation but the lab.
package e2e
