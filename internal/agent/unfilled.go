package agent

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/memory/push"
)

// awaitFilled waits until memory that is still being filled after the last move is complete: a
// matter of seconds.
func (a *Agent) awaitFilled(ctx context.Context, definition engine.Definition) error {
	err := push.AwaitFilled(ctx, func() (memory.FillReport, error) {
		return a.engines.EngineFor(definition).Memory(ctx, definition.ID)
	})
	if err != nil {
		return fmt.Errorf("wait for the memory of %s from its last move: %w", definition.Name, err)
	}
	return nil
}
