// Package testbed makes the lab in which benchmarks measure: two nodes with a link between them, the commands
// that run there, and the turns of a benchmark's ways.
//
// The package knows no way to move a container and no benchmark. It always takes the lab down again.
package testbed
