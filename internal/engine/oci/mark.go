package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

var _ engine.Marker = (*starts)(nil)

// MarkMoved makes the engine show that a container has moved. It does not hold the container's lock, so if
// the engine hangs, only callers that remove the mark wait.
func (s *starts) MarkMoved(ctx context.Context, id string) error {
	marker, is := s.adapter.(Marker)
	if !is {
		return nil
	}
	unlock, err := s.marks.LockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("mark container %.12s as moved in %s: %w", id, s.adapter.Title(), err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(s.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && was.Name == "" { // record of an older agent
		return nil
	}
	var found Container
	if err == nil {
		found, err = s.lookup.find(ctx, id)
	}
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		ctx, cancel := s.lookup.asking(ctx)
		defer cancel()
		err = marker.Mark(ctx, found, was.moved())
	}
	if err != nil {
		return fmt.Errorf("mark container %.12s as moved in %s: %w", id, s.adapter.Title(), err)
	}
	return nil
}

// unmark removes the mark of a container that stays. If another container has its name by now, the marked
// name stays: the container must continue all the same.
func (s *starts) unmark(ctx context.Context, id string, moved Moved) error {
	marker, is := s.adapter.(Marker)
	if !is || moved.Name == "" {
		return nil
	}
	found, err := s.lookup.find(ctx, id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = marker.Unmark(ctx, found, moved)
	}
	if err == nil {
		return nil
	}
	if other, e := s.lookup.ask(ctx, moved.Name); e == nil && other.ID != found.ID {
		return nil
	}
	return err
}
