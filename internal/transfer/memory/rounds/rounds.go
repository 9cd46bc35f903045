package rounds

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// Config is what rounds are made of.
type Config struct {
	Pages     Pages
	Sender    *precopy.Sender
	Settings  Settings
	Figures   *progress.Tracker
	Link      Link
	Processor Processor
	Files     func() time.Duration // that the files make the freeze longer
	Split     *Split               // nil: both nodes may be needed for as long as it takes
	Turn      *Turn
	Auto      *Auto // nil: the user has named the mode
	// Mode is by which the rounds end: that of the migration, unless its memory must not follow.
	Mode   migration.Mode
	Partly bool // the first round is not all the memory: the target has some
	// Fault happens in the middle of a round; nil: nothing goes wrong.
	Fault func(ctx context.Context, step, when string) error
	Log   *slog.Logger
}

// Rounds carries a container's memory to the target in rounds while it runs, and what is left
// in the freeze.
type Rounds struct {
	config  Config
	pages   Pages
	figures *progress.Tracker
	split   *Split

	throttle *throttle
	since    int       // the first round since the container was throttled last
	ahead    int       // rounds that were done while layers came, on which nothing is decided
	fits     bool      // the rounds ended because what was left fitted the downtime that is wanted
	auto     *Auto     // nil: the user has named the mode, or no round counts yet
	began    time.Time // the rounds
	history  []memory.RoundStats
	frozen   bool
	mode     migration.Mode       // by which the rounds end: that of the migration, or memory must not follow
	remote   []memory.TaskMap     // pages that follow when the container was handed over, in the end
	hot      []memory.TaskMap     // of these, those that it will probably touch soon
	touched  []memory.RemoteFault // pages that it will touch first
}

// New makes rounds of which none was done.
func New(config Config) *Rounds {
	m := &Rounds{
		config: config, pages: config.Pages, figures: config.Figures, split: config.Split, mode: config.Mode,
		throttle: &throttle{processor: config.Processor, figures: config.Figures},
	}
	if config.Mode == migration.PostCopy {
		m.follow()
	}
	return m
}

// Run sends the memory while the container runs, again and again what was written meanwhile,
// until the rest fits the downtime that is wanted. After each round it lets files follow.
func (m *Rounds) Run(ctx context.Context, files func(context.Context) error) error {
	m.throttle.watch(ctx)
	m.auto, m.began = m.config.Auto, time.Now()
	defer m.hurry()()
	for {
		stats, err := m.round(ctx, m.pages.Round)
		if err == nil {
			err = files(ctx)
		}
		if err != nil {
			return err
		}
		decision := m.decide()
		m.figures.ExpectDowntime(decision)
		m.split.Left(max(decision.ExpectedDowntime-m.anyway(), 0), m.rtt())
		m.config.Log.Debug("round", "number", stats.Number, "pages", stats.Pages, "seconds",
			stats.Duration.Seconds(), "verdict", decision.Verdict.String(), "reason", decision.Reason)
		if why := m.config.Turn.Wanted(); why != "" {
			m.figures.Decided(fmt.Sprintf("handed over after %d rounds, the rest of the memory is sent "+
				"afterwards: %s", m.figures.Rounds(), why))
			return nil
		}
		if done, err := m.act(ctx, decision); done || err != nil {
			return err
		}
	}
}

// follow has all memory follow that can, so that only the rest is sent in rounds. If both nodes
// would be needed for too long, it goes in rounds first, as in mode hybrid.
func (m *Rounds) follow() {
	why := m.split.Refuses()
	if why == "" {
		m.pages.Leave()
		return
	}
	m.figures.Decided("rounds first: " + why)
	settings := m.config.Settings.Get()
	settings.OnNoConvergence = migration.TurnHybrid
	m.config.Settings.Set(settings)
	m.mode = migration.Hybrid
}

// CatchUp sends what was written while the freeze was prepared. If that took long, on a busy disk
// for example, one round may not bring what is left down to what it was.
func (m *Rounds) CatchUp(ctx context.Context) error {
	for range predict.CatchUpRounds {
		if _, err := m.round(ctx, m.pages.Round); err != nil {
			return err
		}
		if !m.fits || m.decide().Verdict != memory.Continue {
			break
		}
	}
	return nil
}

// Round does one round while the container runs.
func (m *Rounds) Round(ctx context.Context) error {
	_, err := m.round(ctx, m.pages.Round)
	return err
}

// Ahead says that the rounds so far were done while layers came: nothing is decided on them.
func (m *Rounds) Ahead() { m.ahead = len(m.history) }

// Fits reports whether the rounds ended because what was left fitted the downtime that is wanted.
func (m *Rounds) Fits() bool { return m.fits && !m.Leaving() }

// Leaving reports whether pages are left for after the handover.
func (m *Rounds) Leaving() bool { return m.pages.Leaving() }

// LastBytes is how many bytes the last round has sent. Not ok: it was the first, which may have been large.
func (m *Rounds) LastBytes() (bytes int64, ok bool) {
	if len(m.history) < 2 {
		return 0, false
	}
	return int64(m.history[len(m.history)-1].SentBytes), true
}

// EndThrottle lets the container, which is frozen, use what it may use.
func (m *Rounds) EndThrottle(ctx context.Context) error { return m.throttle.end(ctx) }

// Slowed reports whether the container may have been slowed down.
func (m *Rounds) Slowed() bool { return m.throttle.begun }

// Close leaves nothing of the tracking in the processes.
func (m *Rounds) Close() error { return m.pages.Close() }

// round does one round, and tells of it. A round while the container runs is over when its pages
// are in place.
func (m *Rounds) round(ctx context.Context,
	do func(context.Context, memory.Sink) (memory.RoundStats, error)) (memory.RoundStats, error) {
	m.config.Sender.SetFault(m.faultIn(ctx))
	start, wire, before := time.Now(), m.config.Link.PageBytes(), m.config.Sender.Stats()
	stats, err := do(ctx, m.config.Sender)
	if err == nil && !stats.Final {
		err = m.config.Sender.AwaitPlaced(ctx, func(missing []memory.TaskMap) error {
			_, err := m.pages.Again(ctx, m.config.Sender, missing)
			return err
		})
	}
	if err != nil {
		return stats, err
	}
	took := m.config.Sender.Stats().Minus(before)
	stats.Pages, stats.UnchangedPages = took.Pages-took.UnchangedPages,
		stats.UnchangedPages+took.UnchangedPages
	stats.SentBytes = took.FrameBytes
	if stats.Final {
		m.figures.Round(stats, took, 0)
		return stats, nil
	}
	stats.SentBytes, stats.Duration = m.config.Link.PageBytes()-wire, time.Since(start)
	m.history = append(m.history, stats)
	m.figures.Precopied(m.config.Link.PageBytes())
	m.figures.Round(stats, took, m.decide().ExpectedDowntime)
	return stats, nil
}

// Faults can happen in the middle of a round: there are no steps of these names.
const (
	faultPage     = "page"      // while the container runs
	faultLastPage = "last-page" // while it is frozen
)

// faultIn makes happen in a round what a test asked for.
func (m *Rounds) faultIn(ctx context.Context) func() error {
	if m.config.Fault == nil {
		return nil
	}
	step := faultPage
	if m.frozen {
		step = faultLastPage
	}
	return func() error { return m.config.Fault(ctx, step, "before") }
}
