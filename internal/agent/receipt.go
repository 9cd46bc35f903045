package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal/rebuild"
	"github.com/godwit/godwit/internal/migration"
)

// receiptPatience is how long a user's command waits for the source's receipt of a migration that has
// brought the command's container.
const receiptPatience = 5 * time.Second

// awaitReceipt waits until the source has confirmed that it knows of a container that has arrived and
// runs here. Users hear at the source that the container has moved, and their next command may come
// before the receipt. If the source cannot confirm now, the caller finds the migration under way.
func (m *moves) awaitReceipt(ctx context.Context, container string) {
	move := m.of(container)
	if move == nil || move.record().State != migration.Running {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, receiptPatience)
	defer cancel()
	select {
	case <-move.done:
	case <-ctx.Done():
	}
}

// awaitOver waits until the container's last migration has ended here, for as long as ctx allows.
func (a *Agent) awaitOver(ctx context.Context, reference string) error {
	container, err := a.inspect(ctx, reference)
	if err != nil {
		return err
	}
	if move := a.moves.of(container.Definition.ID); move != nil {
		return waitFor(ctx, move.done)
	}
	return a.moves.refuse(container.Definition.ID)
}

// own finds a container that this node may act on, although its last migration may not be over: the
// container runs here, and its source has only to send the rest.
func (a *Agent) own(ctx context.Context, reference string) (engine.Container, error) {
	container, err := a.inspect(ctx, reference)
	if err != nil {
		return container, err
	}
	if move := a.moves.of(container.Definition.ID); move != nil && move.record().State != migration.Running {
		return container, move.busy()
	} else if move != nil {
		return container, nil
	}
	if err := a.moves.refuse(container.Definition.ID); err != nil || container.Leaving == nil {
		return container, err
	}
	container, err = a.inspect(ctx, reference) // its migration may just have ended
	if err != nil || container.Leaving == nil {
		return container, err
	}
	return container, a.moves.busyLeaving(container)
}

// busyLeaving is the error for a request that concerns a container that leaves by an unknown migration: the
// container may run elsewhere, and need what is here.
func (m *moves) busyLeaving(one engine.Container) error {
	why := m.unread.Advice(one)
	if why == "" {
		why = fmt.Sprintf(": the journal is lost, and is made anew within %s", rebuild.Every)
	}
	return fmt.Errorf("%w: container %s is being migrated%s", engine.ErrBusy, one.Definition.Name, why)
}
