package frozen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// Engines finds the engine of a container; engine.Set does.
type Engines interface {
	EngineFor(definition engine.Definition) engine.Engine
}

// Migration is the migration that the copy belongs to.
type Migration interface {
	Record() migration.Record
	// Rebooted reports whether this node was, since the migration began: then the frozen processes are no
	// more.
	Rebooted() bool
}

// Config is what a copy is made of.
type Config struct {
	Engines   Engines
	Migration Migration
	Container engine.Definition
	ID        string // of the migration
	Here      string // the name of this node
	Target    string // the name of the other node
	Restarts  bool   // the container is stopped here, and not frozen
	Log       *slog.Logger
}

// Copy is the frozen copy of a container that moves away.
type Copy struct {
	ctx    context.Context //nolint:containedctx // The life of the agent: it protects beyond a step.
	config Config
	start  func() (keeper, error) // a keeper that holds nothing yet

	keeper  keeper      // of the frozen processes; nil: none
	keeping *protection // by the keeper; nil: it has not begun
	marked  atomic.Bool // the engine shows that the container has moved
	unkept  atomic.Bool // that the copy is not protected in doubt was logged
	permit  permit      // whether the final marker may leave
	ran     atomic.Bool // the frozen copy has, after the target may have run it
}

// New makes the copy of a container that is not frozen yet, or that an earlier agent has frozen. ctx is the
// life of the agent.
func New(ctx context.Context, config Config) *Copy {
	return &Copy{ctx: ctx, config: config, start: startSeizure}
}

func (c *Copy) engine() engine.Engine { return c.config.Engines.EngineFor(c.config.Container) }

// Alarm is what an operator should know of a copy that has run; empty: it has not.
func (c *Copy) Alarm() string {
	if !c.ran.Load() {
		return ""
	}
	return c.ranAlarm()
}

// ranAlarm is what an operator should know of a copy that has run.
func (c *Copy) ranAlarm() string {
	return fmt.Sprintf("another program on %[1]s has thawed the frozen copy of %[2]s, which nothing "+
		"protected: the copy has run, and %[3]s may run the container, too. Godwit freezes the copy again. "+
		"Look for what both may have written to other machines or shared storage",
		c.config.Here, c.config.Container.Name, c.config.Target)
}

// HasRun says that the frozen processes have, if they have: their memory is not what it was.
func (c *Copy) HasRun() error {
	if c.ran.Load() {
		return fmt.Errorf("%w, which has run: its memory has changed", engine.ErrThawed)
	}
	return nil
}

// Killed reports whether another program has killed the copy here. A keeper puts its end off: it would
// end as soon as it went on.
func (c *Copy) Killed(ctx context.Context) bool {
	if c.config.Restarts {
		return false
	}
	pids, err := c.engine().Processes(ctx, c.config.Container.ID)
	return err == nil && slices.ContainsFunc(pids, kernel.Killed)
}

// processes are those of the frozen copy: none if an earlier agent has come as far as to end them.
func (c *Copy) processes(ctx context.Context) ([]int, error) {
	of := c.engine()
	pids, err := of.Processes(ctx, c.config.Container.ID)
	if err == nil {
		return pids, nil
	}
	if one, unknown := of.Inspect(ctx, c.config.Container.ID); isGone(one, unknown) {
		return nil, nil
	}
	return nil, err
}

// Here reports whether the frozen processes are here.
func (c *Copy) Here(ctx context.Context) bool {
	if c.config.Migration.Rebooted() {
		return false
	}
	pids, err := c.processes(ctx)
	return err == nil && len(pids) > 0
}

// Gone reports whether the engine knows that the copy is no more. An error says that it does not answer.
func (c *Copy) Gone(ctx context.Context) (gone bool, err error) {
	one, err := c.engine().Inspect(ctx, c.config.Container.ID)
	if isGone(one, err) {
		return true, nil
	}
	return false, err
}

// isGone tells of what an engine says of a frozen copy whether it is no more.
func isGone(one engine.Container, err error) bool {
	return errors.Is(err, engine.ErrNotFound) || err == nil && one.State != engine.Frozen
}

// Memory opens the memory of the frozen processes. None is left of those of another boot, whatever the
// engine runs now. If its pages are elsewhere, too, an engine that does not answer is no error.
func (c *Copy) Memory(ctx context.Context, elsewhere bool) (*memory.Frozen, error) {
	if c.config.Migration.Rebooted() {
		return memory.OpenFrozen(nil)
	}
	pids, err := c.processes(ctx)
	if err != nil && !elsewhere {
		return nil, err
	}
	return memory.OpenFrozen(pids)
}

// Resume lets the processes go on. Their engine may hang, and has the container back later if it can have it
// back separately.
func (c *Copy) Resume(ctx context.Context) error {
	resume := c.engine().Resume
	if resumer := c.engine().Capabilities().Resumer; resumer != nil {
		resume = resumer.ResumeProcesses
	}
	return resume(ctx, c.config.Container.ID)
}
