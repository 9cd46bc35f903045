package agent

import (
	"context"
	"time"
)

// markAfter is how long a copy that is about to be removed may stay without its engine showing that it
// has moved.
const markAfter = time.Second

// marking has the engine show that the container has moved, if what the copy here waits for takes longer
// than that. The mark is for people, so it fails nothing. stop returns when the engine is not being asked
// any more.
func (s *source) marking(ctx context.Context, after time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go s.agent.guarded(func() {
		defer close(over)
		select {
		case <-time.After(after):
			s.markMoved(ctx)
		case <-ctx.Done():
		}
	})()
	return func() {
		cancel()
		<-over
	}
}

func (s *source) markMoved(ctx context.Context) {
	marker := s.agent.engines.EngineFor(s.definition).Capabilities().Marker
	if marker == nil || s.marked.Load() {
		return
	}
	err := marker.MarkMoved(ctx, s.definition.ID)
	if err == nil {
		s.marked.Store(true)
		return
	}
	s.agent.log.Debug("the engine does not show that the container has moved", "container", s.definition.Name,
		"error", err)
}
