package staging

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Stage is a copy of a container's layers and memory that is made at another node before a
// migration is asked for. It is no migration: it has no journal and no commit, and if anything goes
// wrong it is gone, and the container has noticed nothing. If either agent ends it is gone, too.
//
// All is done by one goroutine (run), which owns the tracker of the memory until a migration takes
// it over (claim).
type Stage struct {
	owner      *Stages
	spec       migration.Spec // of the migration that this might become
	definition engine.Definition
	node       identity.Node
	idle       time.Duration // for how long the target keeps an idle copy when the stage ends; 0: not at all

	ctx    context.Context //nolint:containedctx // The stage's own life: it outlives the call that begins it.
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing of it is left
	claims chan claim    // of migrations that go on from here
	again  chan struct{} // one token: bring it up to date now

	answers chan answer // of the target

	wire
	pages  tracker
	sender *precopy.Sender
	layers *layers.Transfer // of image layers; nil: the target had all
	most   uint64           // pages of a residual copy that the target may claim

	mu       sync.Mutex
	settings migration.StageSettings
	told     migration.Stage
	watcher  func(bytes int64) // is told of what is sent; nil: nobody
}

// wire is the way of a stage's data to the target.
type wire struct {
	limiter stream.Limiter // of all data connections
	data    *stream.Session
	out     *stream.Sections
}

// claim is a migration that wants to go on from a stage.
type claim struct {
	ctx       context.Context //nolint:containedctx // Of the step that waits for the answer.
	migration string
	taken     chan<- *Taken
}

// Taken is a staged copy that a migration takes over: the target has confirmed all that this source sent.
type Taken struct {
	Pages  *memory.Source
	Sender *precopy.Sender
	Stage  migration.Stage // as it was
}

// tracker finds what a container writes; only tests have another one than memory.Source.
type tracker interface {
	Round(ctx context.Context, sink memory.Sink) (memory.RoundStats, error)
	Again(ctx context.Context, sink memory.Sink, missing []memory.TaskMap) (memory.RoundStats, error)
	Close() error
}

// Why stages end.
var (
	errOver     = errors.New("its time is over")
	ErrRemoved  = errors.New("it was removed by a user")
	ErrTaken    = errors.New("a migration went on from it")
	ErrGone     = errors.New("the container has ended")
	ErrUnwanted = errors.New("a copy there is no longer needed")
	ErrIdle     = errors.New("it is idle: another copy is made, or brought up to date")
)

func newStage(owner *Stages, spec migration.Spec, definition engine.Definition, node identity.Node) *Stage {
	ctx, cancel := context.WithCancelCause(owner.ctx)
	return &Stage{
		owner: owner, spec: spec, definition: definition, node: node, ctx: ctx, cancel: cancel,
		done: make(chan struct{}), claims: make(chan claim), again: make(chan struct{}, 1),
		answers: make(chan answer),
		told: migration.Stage{
			ID: spec.ID, Kind: migration.StagedCopy, Container: definition.Name, ContainerID: definition.ID,
			Source: spec.Source, Target: spec.Target, State: migration.StageConnecting, Started: spec.Started,
		},
	}
}

// choose sets what a user has chosen, from now on.
func (g *Stage) choose(settings migration.StageSettings) {
	now := time.Now().UTC()
	g.tell(func(told *migration.Stage) {
		g.settings = settings
		told.Until, told.FreshUntil = now.Add(settings.Keep), time.Time{}
		if settings.KeepFresh > 0 {
			told.FreshUntil = now.Add(settings.KeepFresh)
		}
		if g.data != nil {
			g.data.SetRate(settings.BandwidthLimit)
		}
	})
}

// LimitTo changes how much of the link it may take, if that is much more or less.
func (g *Stage) LimitTo(rate float64) {
	g.tell(func(*migration.Stage) {
		if have := g.settings.BandwidthLimit; have == rate || have > 0 && rate > 0 && rate > 0.8*have &&
			rate < 1.25*have {
			return
		}
		g.settings.BandwidthLimit = rate
		if g.data != nil && g.watcher == nil {
			g.data.SetRate(rate)
		}
	})
}

// End ends it, and returns when nothing of it is left in the container's processes.
func (g *Stage) End(ctx context.Context, why error) error {
	g.cancel(why)
	return waitFor(ctx, g.done)
}

// Target is the node at which the copy is.
func (g *Stage) Target() string { return g.node.Name }

// Refresh asks for a round now.
func (g *Stage) Refresh() {
	select {
	case g.again <- struct{}{}:
	default:
	}
}

func (g *Stage) tell(change func(*migration.Stage)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.told)
}

// Done is closed when nothing of the stage is left.
func (g *Stage) Done() <-chan struct{} { return g.done }

// Describe tells how far the stage is.
func (g *Stage) Describe() migration.Stage {
	g.mu.Lock()
	defer g.mu.Unlock()
	told := g.told
	if g.data != nil {
		told.SentBytes = int64(g.data.Counters().SentWireBytes)
	}
	if g.layers != nil {
		told.SentBytes += int64(g.layers.Left().SentWireBytes)
	}
	return told
}

func (g *Stage) sent(bytes int64) {
	g.mu.Lock()
	watcher := g.watcher
	g.mu.Unlock()
	if watcher != nil {
		watcher(bytes)
	}
}

// run is the life of the stage.
func (g *Stage) run() {
	err := guard.Do(func() error { return g.work(g.ctx) })
	guard.LogPanic(g.owner.log, err)
	var refusal *migration.Refusal // says more than that the target then ended the connection
	if cause := context.Cause(g.ctx); cause != nil && !errors.As(err, &refusal) {
		err = cause
	}
	g.cancel(err)
	// Not before nobody uses it any more; what it left in the processes is gone when this has
	// returned.
	if g.pages != nil {
		if failed := g.pages.Close(); failed != nil {
			g.owner.log.Warn("stage: cannot end the tracking of "+
				"memory", "container", g.definition.Name, "error", failed)
		}
	}
	if g.data != nil {
		_ = g.data.Abort(api.Plain(err)) // whatever was under way is of no use
	}
	g.tell(func(told *migration.Stage) { told.State, told.Error = migration.StageEnded, api.Plain(err) })
	g.owner.forget(g)
	g.owner.log.Info("stage ended", "container", g.definition.Name, "node", g.node.Name, "why", err)
	close(g.done)
}

// work makes the copy and keeps it until it is not wanted any more; its error says why.
func (g *Stage) work(ctx context.Context) error {
	if err := g.owner.containers.AwaitFilled(ctx, g.definition); err != nil {
		return err
	}
	missing, err := g.offer(ctx)
	if err != nil {
		return err
	}
	g.state(migration.StageLayers)
	if err := g.bringImage(ctx, missing); err != nil {
		return fmt.Errorf("bring the image: %w", err)
	}
	if err := g.out.Whole(kindStaged, "", nil); err != nil {
		return err
	}
	g.state(migration.StageMemory)
	if err := g.sender.Begin(g.out); err != nil {
		return err
	}
	if missing.Footprint {
		if _, err := g.sender.AwaitClaims(ctx); err != nil {
			return err
		}
	}
	g.pages = g.owner.track(memory.SourceConfig{Processes: func() ([]int, error) {
		return g.owner.containers.Processes(g.owner.ctx, g.definition)
	}})
	if err := g.round(ctx); err != nil {
		return err
	}
	return g.keep(ctx)
}

func (g *Stage) state(state migration.StageState) {
	g.tell(func(told *migration.Stage) { told.State = state })
}

// keep keeps the copy, and brings it up to date as long as it shall be fresh.
func (g *Stage) keep(ctx context.Context) error {
	tick := time.NewTicker(g.owner.tick)
	defer tick.Stop()
	for pace := (Pacer{}); ; {
		due := false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case claim := <-g.claims:
			return g.handOver(ctx, claim)
		case <-g.again:
			due = true
		case <-tick.C:
			if err := g.look(ctx); err != nil {
				return err
			}
			told := g.Describe()
			due = time.Now().Before(told.FreshUntil) && pace.Due(time.Now()) && !g.owner.migrations.Busy()
		}
		if !due {
			continue
		}
		began := time.Now()
		if err := g.round(ctx); err != nil {
			return err
		}
		pace.Did(began, time.Now())
	}
}

// look ends the stage of a container that runs no more, or whose time is over.
func (g *Stage) look(ctx context.Context) error {
	runs, err := g.owner.containers.Running(ctx, g.definition)
	if err != nil {
		return err
	}
	if !runs {
		return ErrGone
	}
	if time.Now().After(g.Describe().Until) {
		return errOver
	}
	return nil
}
