package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

var _ engine.Marker = (*Engine)(nil)

// moved tells what a copy is marked with. The name was noted before the copy could be marked, so an agent
// that is killed over it leaves nothing that the next one cannot take back.
func (d departureRecord) moved() Moved { return Moved{Name: d.Name, Node: d.Leave.Target} }

// MarkMoved has the engine show that a container has moved. If the engine hangs, only those wait who take
// the mark back: the lock of the container is not held.
func (e *Engine) MarkMoved(ctx context.Context, id string) error {
	marker, is := e.adapter.(Marker)
	if !is {
		return nil
	}
	unlock, err := e.marks.LockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("mark container %.12s as moved in %s: %w", id, e.adapter.Title(), err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(e.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && was.Name == "" { // of an older agent
		return nil
	}
	var found Container
	if err == nil {
		found, err = e.find(ctx, id)
	}
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		ctx, cancel := e.asking(ctx)
		defer cancel()
		err = marker.Mark(ctx, found, was.moved())
	}
	if err != nil {
		return fmt.Errorf("mark container %.12s as moved in %s: %w", id, e.adapter.Title(), err)
	}
	return nil
}

// unmark takes that back from a container that stays. If another container has its name by now, it keeps
// the one that it got: it must go on all the same.
func (e *Engine) unmark(ctx context.Context, id string, moved Moved) error {
	marker, is := e.adapter.(Marker)
	if !is || moved.Name == "" {
		return nil
	}
	found, err := e.find(ctx, id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = marker.Unmark(ctx, found, moved)
	}
	if err == nil {
		return nil
	}
	if other, e := e.ask(ctx, moved.Name); e == nil && other.ID != found.ID {
		return nil
	}
	return err
}
