package agent

import (
	"context"

	"github.com/godwit/godwit/internal/kernel"
)

// While pages of a container are only in its frozen copy here, whoever kills that copy must not take them with it: a keeper holds
// its processes (kernel.Seizure), from about when the final marker leaves until they are thawed or destroyed, which releases them.
// It is a process of its own, so an agent that is started again finds it at work. Without one the drain works as well, but
// does not survive a kill.

// startKeeper has a keeper be ready before the freeze.
func (s *source) startKeeper() {
	keeper, err := kernel.StartSeizure()
	if err != nil {
		s.notKept(err)
		return
	}
	s.endKeeper()
	s.keeper = keeper
}

// keepMemory has it hold the frozen processes. It runs beside what sends the state, and never fails that.
func (s *source) keepMemory(ctx context.Context) error {
	if s.keeper == nil {
		return nil
	}
	pids, err := s.agent.engines.Of(s.definition).Processes(ctx, s.definition.ID)
	if err == nil {
		_, err = s.keeper.Hold(pids)
	}
	if err != nil && ctx.Err() == nil {
		s.notKept(err)
	}
	return nil
}

func (s *source) notKept(err error) {
	s.agent.log.Warn("whoever kills the frozen copy takes the pages with it that are to follow", "container", s.definition.Name, "error", err)
}

// endKeeper ends the use of a keeper. One that holds processes goes on holding them.
func (s *source) endKeeper() {
	if s.keeper == nil {
		return
	}
	_ = s.keeper.Close() // two ends of pipes
	s.keeper = nil
}
