// Package bench lists the benchmarks, and prints their results. Each benchmark is a package below. Most
// compare Godwit with other ways to do the same, on this machine.
//
// Most of them move containers in a lab (package testbed): every way in turn (package moves), several times.
// The lab is always taken down again. The measurements are described as data: scenarios,
// followings, trials and experiments. A result (package results) is one flat list of rows, so that a person
// or a program can compare anything with anything, and a list of the requirements of Godwit and whether they
// are met; package page draws charts of it.
//
// A way that loses data is not measured: clients check every answer, and workloads every page of their
// memory.
//
// Benchmarks start programs and read their output: they must not import the agent or an engine's
// implementation, so that they measure Godwit as its users have it. The benchmark rounds uses the packages
// memory and kernel as the agent does.
package bench
