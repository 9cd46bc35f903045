package push

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

const (
	// fillPace is how often is looked whether memory is complete.
	fillPace = 20 * time.Millisecond
	// fillPatience is for how long nothing may come from the node that the container left before
	// that is told.
	fillPatience = 2 * time.Minute
)

// Filling reports how far the memory of a container is filled; its engine does.
type Filling interface {
	Memory(ctx context.Context, container string) (memory.FillReport, error)
}

// AwaitFilled waits until memory of a container that is still being filled after the last move is complete: a
// matter of seconds.
func AwaitFilled(ctx context.Context, of Filling, container, name string) error {
	err := awaitFilled(ctx, func() (memory.FillReport, error) { return of.Memory(ctx, container) })
	if err != nil {
		return fmt.Errorf("wait for the memory of %s from its last move: %w", name, err)
	}
	return nil
}

func awaitFilled(ctx context.Context, look func() (memory.FillReport, error)) error {
	left, since := int64(-1), time.Now()
	for {
		report, err := look()
		if err != nil || report.State != memory.Filling {
			return err
		}
		// what is all here is filled, however long that takes
		if report.RemoteLeft != left || report.RemoteLeft == 0 {
			left, since = report.RemoteLeft, time.Now()
		}
		if stood := time.Since(since); stood > fillPatience {
			return fmt.Errorf("%d of %d pages are still at the node that the container left, and none has "+
				"arrived for %s: the container cannot be moved before it has them", left, report.Pages,
				stood.Round(time.Second))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(fillPace):
		}
	}
}
