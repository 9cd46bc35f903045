// Package benchtest helps tests of benchmarks: it builds programs, makes a quick configuration, and finds
// leftovers of a run on the machine.
package benchtest
