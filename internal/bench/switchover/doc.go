// Package switchover measures the downtime of a container in a move: every way in turn, several times.
package switchover
