package frozen

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel/inject"
	"github.com/godwit/godwit/internal/migration"
)

// keeper holds frozen processes; inject.Seizure does.
type keeper interface {
	Hold(pids []int) (threads int, err error)
	// Close lets go of the keeper. A keeper that holds processes goes on holding them.
	Close() error
}

func startSeizure() (keeper, error) {
	started, err := inject.StartSeizure()
	if err != nil {
		return nil, err
	}
	return started, nil
}

// StartKeeper starts a keeper long before the freeze: its start takes as much of a processor as the dump.
func (c *Copy) StartKeeper() {
	c.EndKeeper()
	keeper, err := c.start()
	if err != nil {
		c.notKept(err)
		return
	}
	c.keeper = keeper
}

// EndKeeper lets go of a keeper. A keeper that holds processes goes on holding them.
func (c *Copy) EndKeeper() {
	if c.keeper == nil {
		return
	}
	_ = c.keeper.Close() // two ends of pipes
	c.keeper = nil
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

// Keep begins to protect the frozen copy, beside what sends the state: it begins as soon as CRIU has let
// go of the processes. That others can thaw or kill the copy fails nothing. That it is not frozen, or was not
// all the time, does: see AwaitHeld.
func (c *Copy) Keep() {
	hold := c.holdWithNewKeeper
	if keeper := c.keeper; keeper != nil {
		hold = func(pids []int) error {
			_, err := keeper.Hold(pids)
			if err != nil { // it may have been killed since it was started
				return c.holdWithNewKeeper(pids)
			}
			return nil
		}
	}
	ctx, cancel := context.WithCancel(c.ctx) // of no step: it outlasts the one that begins it
	k := &protection{cancel: cancel, held: make(chan struct{}), over: make(chan struct{})}
	c.keeping = k
	go guard.Logged(c.config.Log, func() {
		defer close(k.over)
		defer cancel()
		k.err = guard.Do(func() error { return c.protect(ctx, hold, func() { close(k.held) }) })
		if errors.Is(k.err, engine.ErrExposed) {
			c.notKept(k.err)
		}
	})()
}

// AwaitHeld returns when the frozen copy is held, if it can be. It fails if another program has thawed the
// copy, or if that cannot be ruled out: the target must not have the copy then.
func (c *Copy) AwaitHeld(ctx context.Context) error {
	k := c.keeping
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
		return c.errExposed()
	}
	return fmt.Errorf("keep %s frozen until %s has its state: %w. The container keeps running here: "+
		"migrate it again", c.config.Container.Name, c.config.Target, k.err)
}

// ranUnheld looks once more at a copy that nothing holds, right before the target may run it.
func (c *Copy) ranUnheld(ctx context.Context) bool {
	k := c.keeping
	if k == nil {
		return false
	}
	select {
	case <-k.over:
	default: // the OOM killers are still told of a copy that is held
		return false
	}
	return errors.Is(k.err, engine.ErrExposed) &&
		errors.Is(c.protect(ctx, c.holdWithNewKeeper, nil), engine.ErrThawed)
}

func (c *Copy) errExposed() error {
	return fmt.Errorf("%w of %s: the container keeps running here, and its state is not used at %s. Make "+
		"sure that no other program thaws or resumes a container while it moves, and migrate it again",
		engine.ErrThawed, c.config.Container.Name, c.config.Target)
}

// EndKeeping returns when nothing of Keep is under way any more.
func (c *Copy) EndKeeping() {
	if c.keeping != nil {
		c.keeping.cancel()
		<-c.keeping.over
	}
}

// KeepInDoubt protects the frozen copy of which nobody knows whether it will go on.
func (c *Copy) KeepInDoubt(ctx context.Context) {
	if c.config.Restarts || c.config.Migration.Record().State != migration.InDoubt {
		return
	}
	c.KeepAgain(ctx)
}

// KeepAgain protects the frozen copy that the target may have, whatever has become of its protection: an
// agent may have been killed before it was complete, or a keeper, and others may have thawed the group. If
// the copy has run, its memory is not what the target is to have any more.
func (c *Copy) KeepAgain(ctx context.Context) {
	err := c.protect(ctx, c.holdWithNewKeeper, nil)
	switch {
	case err == nil || ctx.Err() != nil && !errors.Is(err, engine.ErrThawed):
	case errors.Is(err, engine.ErrThawed):
		if c.permit.deny() {
			return // the target never runs the container
		}
		if c.ran.CompareAndSwap(false, true) && !c.config.Migration.Record().Rebuilt {
			c.config.Log.Error("two copies of a container may have run", "migration", c.config.ID,
				"container", c.config.Container.Name, "alarm", c.ranAlarm(), "error", err)
		}
	case c.unkept.CompareAndSwap(false, true):
		c.notKept(err)
	}
}

func (c *Copy) holdWithNewKeeper(pids []int) error {
	keeper, err := c.start()
	if err != nil {
		return err
	}
	defer keeper.Close()
	_, err = keeper.Hold(pids)
	return err
}

// protect asks the engine, which knows whether they are still frozen for a move.
func (c *Copy) protect(ctx context.Context, hold func(pids []int) error, held func()) error {
	protector := c.engine().Capabilities().Protector
	if protector == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, protectPatience)
	defer cancel()
	return protector.Protect(ctx, c.config.Container.ID, hold, held)
}

func (c *Copy) notKept(err error) {
	c.config.Log.Warn("the frozen copy is not protected from kills and thaws by other programs on this node",
		"container", c.config.Container.Name, "error", err)
}
