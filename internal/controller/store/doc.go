// Package store keeps the controller's desired state: nodes, containers' generations, intents, tokens,
// and the certificates by which machines know each other. Records are written on change only; what is
// alive is known from the agents' streams and never stored.
//
// One controller leads at a time. Its term has an epoch, which is higher than that of every earlier
// term, and each write names the term: a controller that lost its lease cannot write. Memory is a fake
// for tests; package etcdstore is the real one; package storetest is the suite that both pass.
package store

import (
	"context"
	"errors"
)

// Limits of a write, so that every implementation accepts the same. etcd takes 128 operations in a
// transaction and 1.5 MiB in a request.
const (
	MaxChanges    = 100
	MaxValueBytes = 64 << 10
	maxNameBytes  = 128
)

// ErrNotLeader means that the term has ended: another controller leads, or will.
var ErrNotLeader = errors.New("this controller does not lead")

// Store is a durable set of records that the leader changes.
type Store interface {
	// Campaign waits until this process leads, and returns its term. Error: that of ctx, or of the store.
	Campaign(ctx context.Context, candidate string) (Term, error)
	// Load returns all records. It needs no term.
	Load(ctx context.Context) ([]Record, error)
	// Commit makes all changes durable, or none. Errors: ErrNotLeader; a change that is not valid.
	Commit(ctx context.Context, term Term, changes ...Change) error
	// Close ends the use of the store.
	Close() error
}

// Term is the time for which a controller leads.
type Term interface {
	// Epoch grows with each term of the cluster.
	Epoch() uint64
	// Lost is closed when the term has ended.
	Lost() <-chan struct{}
	// Resign ends the term, so that another controller can lead at once.
	Resign(ctx context.Context) error
}
