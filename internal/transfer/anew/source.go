package anew

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// Engines has the engine of a container. See engine.Set.
type Engines interface {
	EngineFor(definition engine.Definition) engine.Engine
}

// Packets are those of a container that moves away. See switchover.Packets.
type Packets interface {
	// Stopped says that no process of the container is left.
	Stopped()
	// Reviving says that the target must redirect no packets any more.
	Reviving()
	// Renew gives the container another network namespace.
	Renew(ctx context.Context) error
}

// SourceConfig is what a Source is made of.
type SourceConfig struct {
	Container engine.Definition
	Engines   Engines
	Packets   Packets
	Leave     func() engine.Leave       // the engine's note of the migration
	Forget    func(ctx context.Context) // drops what is cached here of volumes of both nodes
	Here      string                    // the name of this node
	Figures   *progress.Tracker
}

// Source stops a container that moves away, and dumps nothing.
type Source struct{ config SourceConfig }

// NewSource has a container that runs.
func NewSource(config SourceConfig) *Source { return &Source{config} }

func (s *Source) engine() engine.Engine { return s.config.Engines.EngineFor(s.config.Container) }

// Examine finds what stands against stopping the container here and starting it at the target. If nothing
// does, it returns the ports on which the container waits, for the target.
func (s *Source) Examine(ctx context.Context) (ports []byte, problems []engine.Problem, err error) {
	problems, err = s.engine().ExamineAnew(ctx, s.config.Container.ID)
	if err != nil || len(problems) > 0 {
		return nil, problems, err
	}
	found, err := s.engine().Ports(ctx, s.config.Container.ID)
	if err != nil {
		return nil, nil, err
	}
	ports, err = json.Marshal(found)
	return ports, nil, err
}

// Stop ends the container.
func (s *Source) Stop(ctx context.Context) error {
	at, err := s.engine().Halt(ctx, s.config.Container.ID, s.config.Leave())
	if !at.IsZero() {
		s.config.Figures.Frozen(at)
	}
	if err != nil {
		return err
	}
	s.config.Packets.Stopped()
	return nil
}

// Revive starts the container again that was stopped here. Nothing of the old one's connections may
// be in the way of the new one, so it gets a network of its own; those who want to connect go on
// waiting until it is healthy.
func (s *Source) Revive(ctx context.Context) error {
	s.config.Packets.Reviving()
	halted, err := s.engine().Halted(ctx, s.config.Container.ID)
	if err != nil || !halted {
		return err
	}
	if err := s.config.Packets.Renew(ctx); err != nil {
		return fmt.Errorf("network of %s: %w", s.config.Container.Name, err)
	}
	s.config.Forget(ctx) // what was on probation at the target may have written there
	health, err := s.engine().Revive(ctx, s.config.Container.ID)
	if err != nil {
		return err
	}
	s.config.Figures.Decided("started again at " + s.config.Here + ": " + health)
	return nil
}

// remedyPatience bounds how long a remedy is looked into.
const remedyPatience = 2 * time.Second

// Remedy names mode restart where it would help against problems of another mode.
func Remedy(ctx context.Context, engines Engines, container engine.Definition,
	problems []engine.Problem) []engine.Problem {
	if len(problems) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, remedyPatience)
	defer cancel()
	if anew, err := engines.EngineFor(container).ExamineAnew(ctx, container.ID); err != nil || len(anew) > 0 {
		return problems // it would not help, as far as is known
	}
	problems = slices.Clone(problems)
	for i, p := range problems {
		problems[i].Remedy = "move it with --mode restart: its files move, and its processes start anew there"
		if p.Remedy != "" {
			problems[i].Remedy = p.Remedy + "; or " + problems[i].Remedy
		}
	}
	return problems
}
