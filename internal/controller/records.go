package controller

import (
	"context"

	"github.com/godwit/godwit/internal/controller/store"
)

// records makes changes durable while this process leads.
type records struct {
	store store.Store
	term  store.Term
}

// commit makes changes durable together. A caller that gives up must not leave records of which this process
// knows nothing.
func (r records) commit(ctx context.Context, changes ...store.Change) error {
	return r.store.Commit(context.WithoutCancel(ctx), r.term, changes...)
}

// put makes one record durable.
func (r records) put(ctx context.Context, kind store.Kind, name string, value any) error {
	change, err := store.Put(kind, name, value)
	if err != nil {
		return err
	}
	return r.commit(ctx, change)
}

// watchers are those who wait until an intent changes or a token is removed. The cluster's lock guards it.
type watchers struct{ changed chan struct{} } // closed, and replaced, at each change

func newWatchers() *watchers { return &watchers{make(chan struct{})} }

// wake lets all who watch look again.
func (w *watchers) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}
