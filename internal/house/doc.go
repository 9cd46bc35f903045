// Package house checks how the source is built: which package may import which, and how large packages, types
// and lines are. It has nothing but tests.
package house
