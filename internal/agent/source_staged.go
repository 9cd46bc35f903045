package agent

import (
	"context"
	"fmt"
	"time"
)

// takeStaged takes over the staged copy at the target, or ends it: a container's memory has one tracker.
func (s *source) takeStaged(ctx context.Context) error {
	g := s.agent.stages.Of(s.definition.ID)
	if g == nil {
		return nil
	}
	if g.Target() != s.target.Name || !s.move.tracker.Spec.Mode.MemoryAhead() {
		return s.agent.stages.Drop(ctx, s.definition.ID,
			fmt.Errorf("migration %s began without using the copy", s.id()))
	}
	staged, err := g.Take(ctx, s.id(), s.settings.Get().BandwidthLimit, s.move.tracker.Transferred)
	if err != nil || staged == nil {
		return err
	}
	s.staged = staged
	s.move.tracker.Decided(fmt.Sprintf("goes on from the copy that was staged at %s, %d rounds, the last "+
		"%s before", s.target.Name, staged.Stage.Rounds, time.Since(staged.Stage.Fresh).Round(time.Second)))
	return nil
}

// dropStaged ends the tracking of a staged copy that was taken over and not used.
func (s *source) dropStaged() error {
	staged := s.staged
	s.staged = nil
	if staged == nil {
		return nil
	}
	return staged.Pages.Close()
}
