package agent

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
)

// fillPace is how often is looked whether memory is complete.
const fillPace = 20 * time.Millisecond

// awaitFilled waits until memory that is still being filled after the last move is complete: a matter of seconds.
func (a *Agent) awaitFilled(ctx context.Context, definition engine.Definition) error {
	for {
		report, err := a.engines.Of(definition).Memory(ctx, definition.ID)
		if err != nil || report.State != memory.Filling {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(fillPace):
		}
	}
}
