package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/transfer/memory/leaving"
)

// leavingMemory makes the memory of the container, of which nothing has left.
func leavingMemory(s *source, p preparation) *leaving.Memory {
	config := leaving.Config{
		Migration: s.id(), Mode: s.move.Tracker.Spec.Mode, Node: s.agent.self.Name, Target: s.target.Name,
		Container: leaving.Container{ID: s.definition.ID, Name: s.definition.Name,
			Limit: s.definition.Limits.MemoryBytes},
		Engine: func() leaving.Engine { return s.agent.engines.EngineFor(s.definition) },
		Link:   s.link, Settings: &s.settings, Figures: s.move.Tracker, Terms: terms{s},
		Stages: s.agent.stages, Files: s.files.TakeInFreeze, Split: p.split,
		After: leaving.After{
			Copy: s.frozen, Migration: s.move, Spill: s.agent.spillPath(s.id()),
			Ask: s.control.Ask, Decide: s.frozen.Decide(), Silence: s.agent.config.peerTimeout(),
		},
		Residual: leaving.Residual{
			Copies: s.agent.residuals, Dir: filepath.Join(filepath.Dir(s.imagesDir()), "footprint"),
			Keep: func() time.Duration {
				return s.agent.placements.ResidualTime(s.definition.ID, s.agent.self.Name)
			},
		},
		Ended: s.move.Done(), Broken: s.agent.broken(s.move), Log: s.agent.log,
	}
	if p.auto != nil {
		config.Auto = &p.auto.Auto
	}
	if s.agent.config.Faults {
		config.Fault = s.move.Fault
	}
	memory := leaving.New(s.agent.ctx, config)
	if p.slowed {
		memory.MaySlow()
	}
	return memory
}

// terms are what the nodes have told each other about a migration.
type terms struct{ source *source }

// Offer implements leaving.Terms.
func (t terms) Offer() *api.Offer { return t.source.offered }

// Reservation implements leaving.Terms.
func (t terms) Reservation() *api.Reservation { return t.source.agreed() }

// agreed is what the target has reserved; nil: nothing yet.
func (s *source) agreed() *api.Reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reservation
}

// rounds sends the memory while the container runs, after its files.
func (s dumping) rounds(ctx context.Context) error {
	defer s.memory.Turn().May(nil)
	if err := s.copyAhead(ctx, s.memory.RoundAhead); err != nil {
		return err
	}
	if err := s.files.Copy(ctx); err != nil {
		return err
	}
	return s.memory.Run(ctx, s.files.Follow)
}

// spillName is the file in the directory of a migration.
const spillName = "spill"

func (a *Agent) spillPath(id string) string { return filepath.Join(a.moves.Dir(id), spillName) }
