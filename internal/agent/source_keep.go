package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// From the final marker on the target may run the container, while the copy here is frozen and may have to go
// on, or has pages that are to follow. Whoever thaws that copy must not have a second one run, and whoever
// kills it must not take its memory with it. So a keeper (kernel.Seizure) holds its processes until they are
// thawed or destroyed, which releases them, and OOM killers take them last. A keeper is a process of its own,
// so an agent that is started again finds it at work. Without one all goes on as well, but does not survive
// that.

// startKeeper has a keeper be ready before the freeze.
func (s *source) startKeeper() {
	s.endKeeper()
	keeper, err := kernel.StartSeizure()
	if err != nil {
		s.notKept(err)
		return
	}
	s.keeper = keeper
}

// protection is that of a frozen copy as it begins.
type protection struct {
	over chan struct{} // closed when all is done
	err  error         // then
}

// keepCopy begins to protect the frozen copy, beside what sends the state: it begins as soon as CRIU has let
// go of the processes. That it cannot be protected fails nothing; that it was thawed does: see awaitHeld.
func (s *source) keepCopy() {
	hold := holdWithNewKeeper
	if keeper := s.keeper; keeper != nil {
		hold = func(pids []int) error {
			_, err := keeper.Hold(pids)
			return err
		}
	}
	k := &protection{over: make(chan struct{})}
	s.keeping = k
	go func() {
		defer close(k.over)
		k.err = guard.Do(func() error { return s.protect(s.agent.ctx, hold) })
		if k.err != nil && s.agent.ctx.Err() == nil {
			s.notKept(k.err)
		}
	}()
}

// awaitHeld returns when the frozen copy is held, if it can be. It fails if another program has thawed the
// copy: the target must not have it then.
func (s *source) awaitHeld() error {
	s.awaitKept()
	if s.keeping == nil || !errors.Is(s.keeping.err, engine.ErrThawed) {
		return nil
	}
	return fmt.Errorf("%w of %s: it goes on here, and its state is not used at %s. "+
		"Let nothing thaw or resume a container while it moves, and migrate it again",
		engine.ErrThawed, s.definition.Name, s.target.Name)
}

// awaitKept returns when nothing of keepCopy is under way any more.
func (s *source) awaitKept() {
	if s.keeping != nil {
		<-s.keeping.over
	}
}

// keepInDoubt protects the frozen copy of which nobody knows whether it will go on, whatever has become of
// its protection: an agent may have been killed before it was complete, or a keeper, and others may have
// thawed the group.
func (s *source) keepInDoubt(ctx context.Context) {
	if s.restarts() || s.move.record().State != migration.InDoubt {
		return
	}
	if err := s.protect(ctx, holdWithNewKeeper); err != nil && s.unkept.CompareAndSwap(false, true) {
		s.notKept(err)
	}
}

func holdWithNewKeeper(pids []int) error {
	keeper, err := kernel.StartSeizure()
	if err != nil {
		return err
	}
	defer keeper.Close()
	_, err = keeper.Hold(pids)
	return err
}

// protect asks the engine, which knows whether they are still frozen for a move.
func (s *source) protect(ctx context.Context, hold func(pids []int) error) error {
	protector, can := s.agent.engines.Of(s.definition).(engine.Protector)
	if !can {
		return nil
	}
	return protector.Protect(ctx, s.definition.ID, hold)
}

func (s *source) notKept(err error) {
	s.agent.log.Warn("the frozen copy is not protected from kills and thaws by other programs on this node", "container", s.definition.Name, "error", err)
}

// copyKilled tells whether another program has killed the copy here. A keeper puts its end off: it would end
// as soon as it went on.
func (s *source) copyKilled(ctx context.Context) bool {
	if s.restarts() {
		return false
	}
	pids, err := s.agent.engines.Of(s.definition).Processes(ctx, s.definition.ID)
	return err == nil && slices.ContainsFunc(pids, kernel.Killed)
}

// endKeeper lets go of a keeper. A keeper that holds processes goes on holding them.
func (s *source) endKeeper() {
	if s.keeper == nil {
		return
	}
	_ = s.keeper.Close() // two ends of pipes
	s.keeper = nil
}
