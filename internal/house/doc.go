// Package house checks the structure of the source: which package may import which, and how large packages,
// types and lines are. It contains only tests.
package house
