package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// inspect finds a container. If it was here the error says where it went.
func (a *Agent) inspect(ctx context.Context, reference string) (engine.Container, error) {
	container, err := a.engines.Inspect(ctx, reference)
	return container, a.whereTo(err, reference)
}

// whereTo adds to the error of a container that is not here to which node it was moved.
func (a *Agent) whereTo(err error, reference string) error {
	if !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if node := a.moves.movedTo(reference); node != "" {
		return fmt.Errorf("%w: it was moved to %s", err, node)
	}
	return err
}

// movedTo is the node to which a container was moved when it was last moved from or to this node;
// empty if it came here then, or if nothing is known of it.
func (m *moves) movedTo(reference string) string {
	node := ""
	for _, move := range m.list() {
		spec := move.tracker.Spec
		if spec.Name != reference && (reference == "" || !strings.HasPrefix(spec.Container, reference)) {
			continue
		}
		if !move.ended() || move.record().Result != migration.Moved {
			continue
		}
		node = ""
		if spec.Side == migration.Source {
			node = spec.Target
		}
	}
	return node
}

// left reports whether a container is not this node's since it was last moved from or to it.
func (m *moves) left(container string) bool {
	left := false
	for _, move := range m.list() {
		if spec := move.tracker.Spec; spec.Container == container && move.ended() {
			left = (spec.Side == migration.Source) == (move.record().Result == migration.Moved)
		}
	}
	return left
}

// broughtBy is the migration by which a container came here when it was last moved from or to this
// node. Nil: it left then, or never was elsewhere.
func (m *moves) broughtBy(container string) (brought *move) {
	for _, move := range m.list() {
		spec, moved := move.tracker.Spec, move.ended() && move.record().Result == migration.Moved
		switch {
		case spec.Container != container:
		case spec.Side == migration.Target && (moved || !move.ended()):
			brought = move
		case spec.Side == migration.Source && moved:
			brought = nil
		}
	}
	return brought
}

// wait waits until a container has ended, and tells who waits if it goes away instead: what is
// destroyed here then was only its copy.
func (a *Agent) wait(ctx context.Context, id string) (int, error) {
	for {
		code, err := a.embedded.Wait(ctx, id)
		if move := a.moves.of(id); move != nil && move.tracker.Spec.Side == migration.Source &&
			ctx.Err() == nil {
			if err := waitFor(ctx, move.done); err != nil {
				return 0, err
			}
			continue
		}
		if err == nil && a.moves.movedTo(id) != "" {
			err = fmt.Errorf("container %.12s: %w", id, engine.ErrNotFound)
		}
		return code, a.whereTo(err, id)
	}
}
