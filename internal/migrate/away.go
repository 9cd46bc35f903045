package migrate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal/rebuild"
	"github.com/godwit/godwit/internal/migration"
)

// MovedTo is the node to which a container was moved when it was last moved from or to this node;
// empty if it came here then, or if nothing is known of it.
func (m *Moves) MovedTo(reference string) string {
	node := ""
	for _, move := range m.List() {
		spec := move.Tracker.Spec
		if spec.Name != reference && (reference == "" || !strings.HasPrefix(spec.Container, reference)) {
			continue
		}
		if !move.Ended() || move.Record().Result != migration.Moved {
			continue
		}
		node = ""
		if spec.Side == migration.Source {
			node = spec.Target
		}
	}
	return node
}

// Departed reports whether a container that is still on this node runs at another one.
func (m *Moves) Departed(container string) bool {
	moving := m.Of(container)
	return moving != nil && moving.Tracker.Spec.Side == migration.Source &&
		moving.Record().State == migration.Committed
}

// Left reports whether a container is not this node's since it was last moved from or to it.
func (m *Moves) Left(container string) bool {
	left := false
	for _, move := range m.List() {
		if spec := move.Tracker.Spec; spec.Container == container && move.Ended() {
			left = (spec.Side == migration.Source) == (move.Record().Result == migration.Moved)
		}
	}
	return left
}

// BroughtBy is the migration by which a container came here when it was last moved from or to this
// node. Nil: it left then, or never was elsewhere.
func (m *Moves) BroughtBy(container string) (brought *Move) {
	for _, move := range m.List() {
		spec, moved := move.Tracker.Spec, move.Ended() && move.Record().Result == migration.Moved
		switch {
		case spec.Container != container:
		case spec.Side == migration.Target && (moved || !move.Ended()):
			brought = move
		case spec.Side == migration.Source && moved:
			brought = nil
		}
	}
	return brought
}

// receiptPatience is how long a user's command waits for the source's receipt of a migration that has
// brought the command's container.
const receiptPatience = 5 * time.Second

// AwaitReceipt waits until the source has confirmed that it knows of a container that has arrived and
// runs here. Users hear at the source that the container has moved, and their next command may come
// before the receipt. If the source cannot confirm now, the caller finds the migration under way.
func (m *Moves) AwaitReceipt(ctx context.Context, container string) {
	move := m.Of(container)
	if move == nil || move.Record().State != migration.Running {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, receiptPatience)
	defer cancel()
	select {
	case <-move.done:
	case <-ctx.Done():
	}
}

// busyLeaving is the error for a request that concerns a container that leaves by an unknown migration: the
// container may run elsewhere, and need what is here.
func (m *Moves) busyLeaving(one engine.Container) error {
	why := m.unread.Advice(one)
	if why == "" {
		why = fmt.Sprintf(": the journal is lost, and is made anew within %s", rebuild.Every)
	}
	return fmt.Errorf("%w: container %s is being migrated%s", engine.ErrBusy, one.Definition.Name, why)
}
