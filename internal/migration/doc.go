// Package migration decides what a migration does next; it does nothing itself.
//
// One machine runs on each of the two nodes. An event goes in (a step has ended, the peer has said
// something, the peer is lost), a list of actions comes out (journal this, do that step, tell the
// peer), and the agent executes them in order. A mode is a list of named steps, each with its undo,
// with one marked commit point. The package also holds what is decided before (plan, refusals) and
// told afterwards (report), and how far a migration is (progress).
//
// It must know nothing of engines, networks, files, clocks or goroutines: times come in with
// events. This is what makes it possible to test every interleaving of failures (see
// model_test.go).
package migration
