// Package moves has the ways to move a container that benchmarks compare: Godwit's modes, and those of others
// with runc, rsync, Podman and CRIU's lazy pages.
//
// All of them move the same container: those of others are made after one of Godwit's. Each way returns its
// measurements, and knows neither the benchmark nor the other ways' results.
package moves
