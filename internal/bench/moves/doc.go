// Package moves has the ways to move a container that benchmarks compare: Godwit's modes, and ways with runc,
// rsync, Podman and CRIU's lazy pages.
//
// All of them move the same container: Bundle copies one of Godwit's for the other ways. Each way returns its
// measurements, and knows neither the benchmark nor the results of other ways.
package moves
