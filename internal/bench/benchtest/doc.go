// Package benchtest helps tests of benchmarks: programs, a quick configuration, and what a run has left on
// the machine.
package benchtest
