package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// stage is a copy of a container's layers and memory that is made at another node before a
// migration is asked for. It is no migration: it has no journal and no commit, and if anything goes
// wrong it is gone, and the container has noticed nothing. If either agent ends it is gone, too.
//
// All is done by one goroutine (run), which owns the tracker of the memory until a migration takes
// it over (claim).
type stage struct {
	agent      *Agent
	spec       migration.Spec // of the migration that this might become
	definition engine.Definition
	node       identity.Node
	idle       time.Duration // for how long the target keeps an idle copy when the stage ends; 0: not at all

	ctx    context.Context //nolint:containedctx // The stage's own life: it outlives the call that begins it.
	cancel context.CancelCauseFunc
	done   chan struct{}   // closed when nothing of it is left
	claims chan stageClaim // of migrations that go on from here
	again  chan struct{}   // one token: bring it up to date now

	answers chan stageAnswer // of the target

	limiter stream.Limiter // of all data connections
	data    *stream.Session
	out     *stream.Sections
	pages   *memory.Source
	sender  *precopy.Sender
	layers  *layers.Transfer // of image layers; nil: the target had all
	most    uint64           // pages of a residual copy that the target may claim

	mu       sync.Mutex
	settings migration.StageSettings
	told     migration.Stage
	watcher  func(bytes int64) // is told of what is sent; nil: nobody
}

// stageClaim is a migration that wants to go on from a stage.
type stageClaim struct {
	ctx       context.Context //nolint:containedctx // Of the step that waits for the answer.
	migration string
	taken     chan<- *takenCopy
}

// takenCopy is a staged copy that a migration takes over: the target has confirmed all that this source sent.
type takenCopy struct {
	pages  *memory.Source
	sender *precopy.Sender
	stage  migration.Stage // as it was
}

var (
	errStageOver     = errors.New("its time is over")
	errStageRemoved  = errors.New("it was removed by a user")
	errStageTaken    = errors.New("a migration went on from it")
	errStageGone     = errors.New("the container has ended")
	errStageUnwanted = errors.New("a copy there is no longer needed")
	errStageIdle     = errors.New("it is idle: another copy is made, or brought up to date")
)

func newStage(agent *Agent, spec migration.Spec, definition engine.Definition, node identity.Node) *stage {
	ctx, cancel := context.WithCancelCause(agent.ctx)
	return &stage{
		agent: agent, spec: spec, definition: definition, node: node, ctx: ctx, cancel: cancel,
		done: make(chan struct{}), claims: make(chan stageClaim), again: make(chan struct{}, 1),
		answers: make(chan stageAnswer),
		told: migration.Stage{
			ID: spec.ID, Kind: migration.StagedCopy, Container: definition.Name, ContainerID: definition.ID,
			Source: spec.Source, Target: spec.Target, State: migration.StageConnecting, Started: spec.Started,
		},
	}
}

// choose sets what a user has chosen, from now on.
func (g *stage) choose(settings migration.StageSettings) {
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

// limitTo changes how much of the link it may take, if that is much more or less.
func (g *stage) limitTo(rate float64) {
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

// end ends it, and returns when nothing of it is left in the container's processes.
func (g *stage) end(ctx context.Context, why error) error {
	g.cancel(why)
	return waitFor(ctx, g.done)
}

// target is the node at which the copy is.
func (g *stage) target() string { return g.node.Name }

// refresh asks for a round now.
func (g *stage) refresh() {
	select {
	case g.again <- struct{}{}:
	default:
	}
}

func (g *stage) tell(change func(*migration.Stage)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.told)
}

func (g *stage) describe() migration.Stage {
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

func (g *stage) sent(bytes int64) {
	g.mu.Lock()
	watcher := g.watcher
	g.mu.Unlock()
	if watcher != nil {
		watcher(bytes)
	}
}

// run is the life of the stage.
func (g *stage) run() {
	err := guard.Do(func() error { return g.work(g.ctx) })
	g.agent.logPanic(err)
	if cause := context.Cause(g.ctx); cause != nil {
		err = cause
	}
	g.cancel(err)
	// Not before nobody uses it any more; what it left in the processes is gone when this has
	// returned.
	if g.pages != nil {
		if failed := g.pages.Close(); failed != nil {
			g.agent.log.Warn("stage: cannot end the tracking of "+
				"memory", "container", g.definition.Name, "error", failed)
		}
	}
	if g.data != nil {
		_ = g.data.Abort(plain(err)) // whatever was under way is of no use
	}
	g.tell(func(told *migration.Stage) { told.State, told.Error = migration.StageEnded, plain(err) })
	g.agent.stages.forget(g)
	g.agent.log.Info("stage ended", "container", g.definition.Name, "node", g.node.Name, "why", err)
	close(g.done)
}

// work makes the copy and keeps it until it is not wanted any more; its error says why.
func (g *stage) work(ctx context.Context) error {
	if err := g.agent.awaitFilled(ctx, g.definition); err != nil {
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
	processes := func() ([]int, error) {
		return g.agent.engines.EngineFor(g.definition).Processes(g.agent.ctx, g.definition.ID)
	}
	g.pages = memory.NewSource(memory.SourceConfig{Processes: processes})
	if err := g.round(ctx); err != nil {
		return err
	}
	return g.keep(ctx)
}

func (g *stage) state(state migration.StageState) {
	g.tell(func(told *migration.Stage) { told.State = state })
}

// keep keeps the copy, and brings it up to date as long as it shall be fresh.
func (g *stage) keep(ctx context.Context) error {
	tick := time.NewTicker(stageTick)
	defer tick.Stop()
	for pace := (pacer{}); ; {
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
			told := g.describe()
			due = time.Now().Before(told.FreshUntil) && pace.due(time.Now()) && !g.agent.moves.busy()
		}
		if !due {
			continue
		}
		began := time.Now()
		if err := g.round(ctx); err != nil {
			return err
		}
		pace.did(began, time.Now())
	}
}

// look ends the stage of a container that runs no more, or whose time is over.
func (g *stage) look(ctx context.Context) error {
	container, err := g.agent.engines.EngineFor(g.definition).Inspect(ctx, g.definition.ID)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if err != nil || container.State != engine.Running {
		return errStageGone
	}
	if time.Now().After(g.describe().Until) {
		return errStageOver
	}
	return nil
}

// pacer tells when the next round of a copy that is kept fresh is due: at low priority, so that it
// takes a tenth of the time at most.
type pacer struct{ next time.Time }

const (
	minPause   = 2 * time.Second
	pauseRatio = 9 // of a round's duration
)

func (p *pacer) due(now time.Time) bool { return !now.Before(p.next) }

func (p *pacer) did(began, ended time.Time) {
	p.next = ended.Add(max(minPause, pauseRatio*ended.Sub(began)))
}
