package leaving

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
)

// Run sends the memory while the container runs; see rounds.Rounds. After each round it lets files follow.
func (m *Memory) Run(ctx context.Context, files func(context.Context) error) error {
	if err := m.open(ctx); err != nil {
		return err
	}
	return m.rounds.Run(ctx, files)
}

// RoundAhead does a round of memory on which nothing is decided; see StopAhead.
func (m *Memory) RoundAhead(ctx context.Context) error {
	if err := m.open(ctx); err != nil {
		return err
	}
	return m.rounds.Round(ctx)
}

// StopAhead says that rounds count from now on: those before were done while layers came.
func (m *Memory) StopAhead() {
	if m.rounds != nil {
		m.rounds.Ahead()
	}
}

// open begins to look at the container's memory, if that has not begun.
func (m *Memory) open(ctx context.Context) error {
	if m.rounds != nil {
		return nil
	}
	if err := m.openPages(ctx); err != nil {
		return err
	}
	m.config.Split.Carries(m.config.Link.BytesPerSecond() * 8)
	partly := m.staged != nil || m.config.Terms.Reservation().GetFootprint()
	pages := m.trackedPages()
	m.rounds = rounds.New(rounds.Config{
		Pages: pages, Sender: m.current(), Partly: partly, Settings: m.config.Settings,
		Figures: m.config.Figures, Link: pageLink{m.config.Link}, Processor: processor{m},
		Files: m.config.Files, Split: m.config.Split, Turn: &m.turn, Mode: m.config.Mode,
		Auto: m.config.Auto, Fault: m.config.Fault,
		Log: m.config.Log.With("migration", m.config.Migration, "container", m.config.Container.Name),
	})
	m.turn.May(pages)
	return nil
}

// pageLink is the way of pages to the target.
type pageLink struct{ *link.Link }

// PageBytes implements rounds.Link.
func (l pageLink) PageBytes() uint64 { return l.Sent().Sent[precopy.KindPages].WireBytes }

// processor is the processor time of the container.
type processor struct{ memory *Memory }

// CPUTime implements rounds.Processor.
func (p processor) CPUTime(ctx context.Context) (time.Duration, error) {
	return p.memory.config.Engine().CPUTime(ctx, p.memory.config.Container.ID)
}

// Throttle implements rounds.Processor.
func (p processor) Throttle(ctx context.Context, cpus float64) error {
	return p.memory.config.Engine().Throttle(ctx, p.memory.config.Container.ID, cpus)
}

// LastBytes is how many bytes the last round has sent. Not ok: there was none, or it was the first, which may
// have been large.
func (m *Memory) LastBytes() (bytes int64, ok bool) {
	if m.rounds == nil {
		return 0, false
	}
	return m.rounds.LastBytes()
}

// Foresee refuses memory that does not fit the container's limit at the target.
func (m *Memory) Foresee() error {
	why, err := m.rounds.Foresee(m.config.Container.Limit)
	if err != nil || why == "" {
		return err
	}
	return &migration.Refusal{Problems: []migration.Problem{{
		What: "the container's memory", Why: why,
		Remedy: "move it with --mode cold, or give it a higher limit",
	}}}
}

// CatchUp sends what was written while the freeze was prepared.
func (m *Memory) CatchUp(ctx context.Context) error { return m.rounds.CatchUp(ctx) }

// quiescedQuickly is how long quiescing may take without another round: memory written since is little.
const quiescedQuickly = 10 * time.Millisecond

// Quiesced sends what was written while the container's connections were quiesced, which took so long, if the
// freeze is to be short.
func (m *Memory) Quiesced(ctx context.Context, took time.Duration) error {
	if m.rounds != nil && m.rounds.Fits() && took > quiescedQuickly {
		return m.rounds.Round(ctx)
	}
	return nil
}

// Frozen lets the container, which is frozen, use what it may use: what CRIU runs in its processes counts as
// theirs.
func (m *Memory) Frozen(ctx context.Context) error {
	if m.rounds == nil {
		return nil
	}
	return m.rounds.EndThrottle(ctx)
}

// LeaveShared has the dump leave out what the processes share, if it can.
func (m *Memory) LeaveShared(leave func(inodes []uint64) (bool, error)) error {
	if m.rounds == nil {
		return nil
	}
	return m.rounds.LeaveShared(leave)
}

// Last sends what was written last, while the container is dumped.
func (m *Memory) Last(ctx context.Context) error {
	if m.rounds == nil {
		return nil
	}
	return m.rounds.Last(ctx)
}

// Finish sends what is left after the dump, and the map of all that there must be.
func (m *Memory) Finish(ctx context.Context, dump rounds.Dump) error {
	if m.rounds == nil {
		return nil
	}
	return m.rounds.Finish(ctx, dump, m.config.Link.Out())
}
