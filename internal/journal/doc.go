// Package journal keeps what is durable of the migrations of this node: for each a file with the record of
// its state machine and the container's definition, from before its first step on.
//
// A journal that cannot be used stands for a migration of which nothing may be said: Unreads keep those. The
// package decides nothing: the agent writes what the machine says, and goes on from it after a crash.
package journal
