// Package testbed is where benchmarks measure: two nodes of a lab with a link between them, the commands that
// run there, and turns in which the ways of a benchmark are measured.
//
// The package knows no way to move a container and no benchmark. It takes the lab down again, whatever
// happens.
package testbed
