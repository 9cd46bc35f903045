// Package results holds the results of benchmarks: measurements, their statistics, the requirements that
// they are compared with, and tables for people.
//
// A result is one flat list of rows, so that a person or a program can compare anything with anything. The
// package measures nothing and knows no benchmark.
package results
