package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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

// startKeeper starts a keeper long before the freeze: its start takes as much of a processor as the dump.
func (s *source) startKeeper() {
	s.endKeeper()
	keeper, err := kernel.StartSeizure()
	if err != nil {
		s.notKept(err)
		return
	}
	s.keeper = keeper
}

// protectPatience bounds how long a copy may take to be frozen again, for example if one of its threads waits
// for a device. Whatever else is to be done with the copy waits meanwhile.
const protectPatience = 10 * time.Second

// protection is that of a frozen copy as it begins.
type protection struct {
	cancel context.CancelFunc
	held   chan struct{} // closed when the processes are held, and the OOM killers do not know yet
	over   chan struct{} // closed when all is done
	err    error         // then
}

// keepCopy begins to protect the frozen copy, beside what sends the state: it begins as soon as CRIU has let
// go of the processes. That others can thaw or kill the copy fails nothing. That it is not frozen, or was not
// all the time, does: see awaitHeld.
func (s *source) keepCopy() {
	hold := holdWithNewKeeper
	if keeper := s.keeper; keeper != nil {
		hold = func(pids []int) error {
			_, err := keeper.Hold(pids)
			if err != nil { // it may have been killed since it was started
				return holdWithNewKeeper(pids)
			}
			return nil
		}
	}
	ctx, cancel := context.WithCancel(s.agent.ctx) // of no step: it outlasts the one that begins it
	k := &protection{cancel: cancel, held: make(chan struct{}), over: make(chan struct{})}
	s.keeping = k
	go s.agent.guarded(func() {
		defer close(k.over)
		defer cancel()
		k.err = guard.Do(func() error { return s.protect(ctx, hold, func() { close(k.held) }) })
		if errors.Is(k.err, engine.ErrExposed) {
			s.notKept(k.err)
		}
	})()
}

// awaitHeld returns when the frozen copy is held, if it can be. It fails if another program has thawed the
// copy, or if that cannot be ruled out: the target must not have the copy then.
func (s *source) awaitHeld(ctx context.Context) error {
	k := s.keeping
	if k == nil {
		return nil
	}
	defer context.AfterFunc(ctx, k.cancel)()
	select {
	case <-k.held:
		return nil
	case <-k.over:
	}
	switch {
	case k.err == nil || errors.Is(k.err, engine.ErrExposed):
		return nil
	case errors.Is(k.err, engine.ErrThawed):
		return s.errExposed()
	}
	return fmt.Errorf("keep %s frozen until %s has its state: %w. The container keeps running here: "+
		"migrate it again", s.definition.Name, s.target.Name, k.err)
}

// ranUnheld looks once more at a copy that nothing holds, right before the target may run it.
func (s *source) ranUnheld(ctx context.Context) bool {
	k := s.keeping
	if k == nil {
		return false
	}
	select {
	case <-k.over:
	default: // the OOM killers are still told of a copy that is held
		return false
	}
	return errors.Is(k.err, engine.ErrExposed) &&
		errors.Is(s.protect(ctx, holdWithNewKeeper, nil), engine.ErrThawed)
}

func (s *source) errExposed() error {
	return fmt.Errorf("%w of %s: the container keeps running here, and its state is not used at %s. Make "+
		"sure that no other program thaws or resumes a container while it moves, and migrate it again",
		engine.ErrThawed, s.definition.Name, s.target.Name)
}

// finalPermit keeps the final marker here while the frozen copy is not known to be held. The
// migration may be in doubt by then: the journal says that the marker may have left while the copy
// is still being held. An agent that was started again does not know, and its permit says that the
// marker has left.
type finalPermit struct {
	mu       sync.Mutex
	withheld bool // the marker has not left
	denied   bool // and must not: the copy may have run, or the send has failed
	released bool // the marker has been given to the stream
}

// withhold says that the marker has not left.
func (p *finalPermit) withhold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withheld = true
}

// release lets the marker leave, unless that was denied.
func (p *finalPermit) release() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withheld, p.released = p.denied, !p.denied
	return p.released
}

// given reports whether the marker has been given to the stream, in which it may still wait.
func (p *finalPermit) given() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.released
}

// deny keeps the marker here for good. Not ok: the marker may have left.
func (p *finalPermit) deny() (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied = p.withheld
	return p.withheld
}

// endKeeping returns when nothing of keepCopy is under way any more.
func (s *source) endKeeping() {
	if s.keeping != nil {
		s.keeping.cancel()
		<-s.keeping.over
	}
}

// keepInDoubt protects the frozen copy of which nobody knows whether it will go on.
func (s *source) keepInDoubt(ctx context.Context) {
	if s.restarts() || s.move.record().State != migration.InDoubt {
		return
	}
	s.protectAgain(ctx)
}

// protectAgain protects the frozen copy that the target may have, whatever has become of its protection: an
// agent may have been killed before it was complete, or a keeper, and others may have thawed the group. If
// the copy has run, its memory is not what the target is to have any more.
func (s *source) protectAgain(ctx context.Context) {
	err := s.protect(ctx, holdWithNewKeeper, nil)
	switch {
	case err == nil || ctx.Err() != nil && !errors.Is(err, engine.ErrThawed):
	case errors.Is(err, engine.ErrThawed):
		if s.marker.deny() {
			return // the target never runs the container
		}
		if s.ran.CompareAndSwap(false, true) && !s.move.record().Rebuilt {
			s.agent.log.Error("two copies of a container may have run", "migration", s.id(),
				"container", s.definition.Name, "alarm", s.ranAlarm(), "error", err)
		}
	case s.unkept.CompareAndSwap(false, true):
		s.notKept(err)
	}
}

// ranAlarm is what an operator should know of a copy that has run.
func (s *source) ranAlarm() string {
	return fmt.Sprintf("another program on %[1]s has thawed the frozen copy of %[2]s, which nothing "+
		"protected: the copy has run, and %[3]s may run the container, too. Godwit freezes the copy again. "+
		"Look for what both may have written to other machines or shared storage",
		s.agent.self.Name, s.definition.Name, s.target.Name)
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
func (s *source) protect(ctx context.Context, hold func(pids []int) error, held func()) error {
	protector := s.agent.engines.EngineFor(s.definition).Capabilities().Protector
	if protector == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, protectPatience)
	defer cancel()
	return protector.Protect(ctx, s.definition.ID, hold, held)
}

func (s *source) notKept(err error) {
	s.agent.log.Warn("the frozen copy is not protected from kills and thaws by other programs on this node",
		"container", s.definition.Name, "error", err)
}

// copyKilled reports whether another program has killed the copy here. A keeper puts its end off: it would
// end as soon as it went on.
func (s *source) copyKilled(ctx context.Context) bool {
	if s.restarts() {
		return false
	}
	pids, err := s.agent.engines.EngineFor(s.definition).Processes(ctx, s.definition.ID)
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
