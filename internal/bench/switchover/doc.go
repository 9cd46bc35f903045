// Package switchover measures how long a container stands still when it is moved: every way in turn, several
// times.
package switchover
