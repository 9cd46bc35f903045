package lxc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/engine"
)

var _ engine.Marker = (*Engine)(nil)

// MarkMoved has LXC show that a container has moved.
func (e *Engine) MarkMoved(_ context.Context, id string) error {
	defer e.lock(id)()
	was, err := e.departureOf(id)
	var p place
	if err == nil {
		p, err = e.find(id)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = p.mark(was.Leave.Target)
	}
	if err != nil {
		return fmt.Errorf("have LXC show that container %.12s has moved: %w", id, err)
	}
	return nil
}
