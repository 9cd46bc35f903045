// Package migration decides what a migration does next; it does nothing itself.
//
// One machine runs on each of the two nodes. An event goes in (a step has ended, the peer has sent a
// message, the peer is lost), a list of actions comes out (journal this, do that step, tell the peer), and
// the agent executes the actions in order. A mode is a list of named steps, each with its undo, and one of
// them is the commit point. The package also holds the decisions before a migration (plan, refusals), its
// progress, and the report after it.
//
// The package must know nothing of engines, networks, files, clocks or goroutines: times come in with
// events. Tests can therefore try every interleaving of failures (see model_test.go).
package migration
