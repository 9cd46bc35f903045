package agent

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// Whoever kills or thaws the frozen copy here, while pages of it are to follow, must not take these with it, nor have a second copy run: a keeper holds its processes (kernel.Seizure) until they are thawed or destroyed, which
// releases them, and OOM killers take them last. A keeper is a process of its own, so an agent that is started again finds it at
// work. Without one all goes on as well, but does not survive that.

// startKeeper has a keeper be ready, before the freeze if pages will stay.
func (s *source) startKeeper() {
	s.endKeeper()
	keeper, err := kernel.StartSeizure()
	if err != nil {
		s.notKept(err)
		return
	}
	s.keeper = keeper
}

// keepMemory protects the frozen processes, whose pages are to follow. It runs beside what sends the state, and never fails that.
func (s *source) keepMemory(ctx context.Context) error {
	if s.keeper == nil {
		return nil
	}
	if err := s.protect(ctx, s.keeper, true); err != nil && ctx.Err() == nil {
		s.notKept(err)
	}
	return nil
}

// protect asks the engine, which knows whether they are still frozen for a move.
func (s *source) protect(ctx context.Context, keeper *kernel.Seizure, memory bool) error {
	protector, can := s.agent.engines.Of(s.definition).(engine.Protector)
	if !can {
		return nil
	}
	return protector.Protect(ctx, s.definition.ID, func(pids []int) error {
		_, err := keeper.Hold(pids, memory)
		return err
	})
}

func (s *source) notKept(err error) {
	s.agent.log.Warn("the frozen copy is not protected from kills and thaws by other programs on this node", "container", s.definition.Name, "error", err)
}

// endKeeper lets go of a keeper. A keeper that holds processes goes on holding them.
func (s *source) endKeeper() {
	if s.keeper == nil {
		return
	}
	_ = s.keeper.Close() // two ends of pipes
	s.keeper = nil
}
