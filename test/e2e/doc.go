// Package e2e tests the promises to users: a container that is moved between two nodes of a lab continues
// as if nothing had happened, and a container that cannot continue is refused with the reason before
// anything is touched.
//
// The tests use the program like users, through its command line, and check containers from inside: the
// workloads (directory workloads, in C) set up one kind of state each and check themselves whether it is
// still there. Of the implementation, the tests know only the package lab.
package e2e
