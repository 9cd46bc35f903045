package agent

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// settlePatience is how long a user's command waits for the last word of a migration that has brought its container.
const settlePatience = 5 * time.Second

// awaitSettled waits for a container that has arrived and runs here, until the source has confirmed that it knows: users
// are told at the source that it has moved, and may be quicker than that word. If the source cannot say it now, the
// caller finds the migration under way.
func (m *moves) awaitSettled(ctx context.Context, container string) {
	move := m.of(container)
	if move == nil || move.record().State != migration.Running {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	select {
	case <-move.done:
	case <-ctx.Done():
	}
}
