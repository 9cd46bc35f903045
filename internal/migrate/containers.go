package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/patience"
)

// Containers finds containers of this node, and knows of their migrations.
type Containers struct{ moves *Moves }

// NewContainers finds the containers that the engines of a node have.
func NewContainers(moves *Moves) *Containers { return &Containers{moves: moves} }

// Inspect finds a container. If it was here the error says where it went.
func (c *Containers) Inspect(ctx context.Context, reference string) (engine.Container, error) {
	container, err := c.moves.config.Engines.Inspect(ctx, reference)
	return container, c.whereTo(err, reference)
}

// ListAnswered lists the containers of all engines that answer.
func (c *Containers) ListAnswered(ctx context.Context) ([]engine.Container, error) {
	return c.moves.config.Engines.ListAnswered(ctx)
}

// whereTo adds to the error of a container that is not here to which node it was moved.
func (c *Containers) whereTo(err error, reference string) error {
	if !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if node := c.moves.MovedTo(reference); node != "" {
		return fmt.Errorf("%w: it was moved to %s", err, node)
	}
	return err
}

// Idle finds a container that no migration has to do with.
func (c *Containers) Idle(ctx context.Context, reference string) (engine.Container, error) {
	container, err := c.Inspect(ctx, reference)
	if err != nil {
		return container, err
	}
	c.moves.AwaitReceipt(ctx, container.Definition.ID)
	return container, c.moves.Refuse(container.Definition.ID)
}

// Own finds a container that this node may act on, although its last migration may not be over: the
// container runs here, and its source has only to send the rest.
func (c *Containers) Own(ctx context.Context, reference string) (engine.Container, error) {
	container, err := c.Inspect(ctx, reference)
	if err != nil {
		return container, err
	}
	if move := c.moves.Of(container.Definition.ID); move != nil && move.Record().State != migration.Running {
		return container, move.Busy()
	} else if move != nil {
		return container, nil
	}
	if err := c.moves.Refuse(container.Definition.ID); err != nil || container.Leaving == nil {
		return container, err
	}
	container, err = c.Inspect(ctx, reference) // its migration may just have ended
	if err != nil || container.Leaving == nil {
		return container, err
	}
	return container, c.moves.busyLeaving(container)
}

// AwaitOver waits until the container's last migration has ended here, for as long as ctx allows.
func (c *Containers) AwaitOver(ctx context.Context, reference string) error {
	container, err := c.Inspect(ctx, reference)
	if err != nil {
		return err
	}
	if move := c.moves.Of(container.Definition.ID); move != nil {
		return patience.UntilClosed(ctx, move.done)
	}
	return c.moves.Refuse(container.Definition.ID)
}

// Wait waits until a container has ended, and tells who waits if it goes away instead: what is
// destroyed here then was only its copy.
func (c *Containers) Wait(ctx context.Context, id string) (int, error) {
	for {
		code, err := c.moves.config.Own.Wait(ctx, id)
		if move := c.moves.Of(id); move != nil && move.Tracker.Spec.Side == migration.Source &&
			ctx.Err() == nil {
			if err := patience.UntilClosed(ctx, move.done); err != nil {
				return 0, err
			}
			continue
		}
		if err == nil && c.moves.MovedTo(id) != "" {
			err = fmt.Errorf("container %.12s: %w", id, engine.ErrNotFound)
		}
		return code, c.whereTo(err, id)
	}
}
