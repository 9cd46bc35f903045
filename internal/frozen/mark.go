package frozen

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/guard"
)

// Marking has the engine show that the container has moved, if what the copy here waits for takes longer
// than that. The mark is for people, so it fails nothing. stop returns when the engine is not being asked
// any more.
func (c *Copy) Marking(ctx context.Context, after time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go guard.Logged(c.config.Log, func() {
		defer close(over)
		select {
		case <-time.After(after):
			c.MarkMoved(ctx)
		case <-ctx.Done():
		}
	})()
	return func() {
		cancel()
		<-over
	}
}

// MarkMoved has the engine show that the container has moved, once.
func (c *Copy) MarkMoved(ctx context.Context) {
	marker := c.engine().Capabilities().Marker
	if marker == nil || c.marked.Load() {
		return
	}
	err := marker.MarkMoved(ctx, c.config.Container.ID)
	if err == nil {
		c.marked.Store(true)
		return
	}
	c.config.Log.Debug("the engine does not show that the container has moved", "container",
		c.config.Container.Name, "error", err)
}
