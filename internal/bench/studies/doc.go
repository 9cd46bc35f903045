// Package studies repeats the experiments of four studies: their workloads over their links, in Godwit's ways
// and in theirs, with the studies' own figures beside the measurements. A run can be interrupted and go on
// later.
package studies
