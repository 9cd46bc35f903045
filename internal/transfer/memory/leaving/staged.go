package leaving

import (
	"context"
	"fmt"
	"time"
)

// TakeStaged takes over the staged copy at the target, or ends it: a container's memory has one tracker.
func (m *Memory) TakeStaged(ctx context.Context) error {
	g := m.config.Stages.Of(m.config.Container.ID)
	if g == nil {
		return nil
	}
	if g.Target() != m.config.Target || !m.config.Mode.MemoryAhead() {
		return m.config.Stages.Drop(ctx, m.config.Container.ID,
			fmt.Errorf("migration %s began without using the copy", m.config.Migration))
	}
	staged, err := g.Take(ctx, m.config.Migration, m.config.Settings.Get().BandwidthLimit,
		m.config.Figures.Transferred)
	if err != nil || staged == nil {
		return err
	}
	m.staged = staged
	m.config.Figures.Decided(fmt.Sprintf("goes on from the copy that was staged at %s, %d rounds, the last "+
		"%s before", m.config.Target, staged.Stage.Rounds,
		time.Since(staged.Stage.Fresh).Round(time.Second)))
	return nil
}

// DropStaged ends the tracking of a staged copy that was taken over and not used.
func (m *Memory) DropStaged() error {
	staged := m.staged
	m.staged = nil
	if staged == nil {
		return nil
	}
	return staged.Pages.Close()
}
