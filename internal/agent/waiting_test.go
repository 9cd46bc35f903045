package agent

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

var errAwayNow = errors.New("cannot connect")

// awayEngine answers nobody as long as it is away.
type awayEngine struct {
	engine.Engine
	away  bool
	ended int // throttles
}

func (*awayEngine) Name() string { return "away" }

func (*awayEngine) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (e *awayEngine) Throttle(_ context.Context, _ string, cpus float64) error {
	if e.away {
		return errAwayNow
	}
	if cpus == 0 {
		e.ended++
	}
	return nil
}

func (*awayEngine) CPUTime(context.Context, string) (time.Duration, error) { return time.Hour, nil }

// restlessPages are pages of which every round finds as many, and a target that has them at once.
type restlessPages struct {
	rounds.Pages
	target *precopy.Sender
	done   uint64
}

func (p *restlessPages) Round(context.Context, memory.Sink) (memory.RoundStats, error) {
	p.done++
	placed := stream.Section{Name: strconv.FormatUint(p.done, 10), Reader: strings.NewReader("")}
	return memory.RoundStats{Pages: 1000, Interval: time.Second}, p.target.HearPlaced(placed)
}

func (*restlessPages) Leaving() bool { return false }

func (*restlessPages) Close() error { return nil }

// PageBytes implements rounds.Link.
func (p *restlessPages) PageBytes() uint64 { return p.done * 1e6 }

// BytesPerSecond implements rounds.Link.
func (*restlessPages) BytesPerSecond() float64 { return 1e6 }

// nowhere is a lane that takes everything.
type nowhere struct{}

func (nowhere) Send([]byte) error { return nil }
func (nowhere) Push() error       { return nil }

// throttled are rounds in which a container was to be slowed down by an engine that did not answer, and that
// may have slowed it down.
func throttled(t *testing.T, by engine.Engine) *rounds.Rounds {
	t.Helper()
	sender, err := precopy.NewSender(func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sender.Close(errAwayNow) })
	if err := sender.AddLane(nowhere{}); err != nil {
		t.Fatal(err)
	}
	pages, chosen := &restlessPages{target: sender}, &settings{}
	chosen.Set(migration.Settings{DowntimeTarget: time.Millisecond, OnNoConvergence: migration.Throttle})
	m := rounds.New(rounds.Config{
		Pages: pages, Sender: sender, Settings: chosen, Figures: progress.NewTracker(migration.Spec{}),
		Link: pages, Processor: processor{engine: by}, Files: func() time.Duration { return 0 },
		Turn: &rounds.Turn{}, Mode: migration.PreCopy, Log: slog.New(slog.DiscardHandler),
	})
	none := func(context.Context) error { return nil }
	if err := m.Run(t.Context(), none); !errors.Is(err, errAwayNow) || !m.Slowed() {
		t.Fatalf("%v, slowed down: %t", err, m.Slowed())
	}
	return m
}

// TestUntrackAway: an undo waits for an engine that is away only if the container may be slowed down.
func TestUntrackAway(t *testing.T) {
	away := &awayEngine{away: true}
	a := newTestAgent(t)
	a.engines = engine.NewSet(away)
	for name, c := range map[string]struct {
		memory *rounds.Rounds
		slowed bool
		waits  bool
	}{
		"nothing was begun": {},
		"rounds":            {memory: rounds.New(rounds.Config{Pages: &memory.Source{}})},
		"throttled":         {memory: throttled(t, away), waits: true},
		"after a crash":     {slowed: true, waits: true},
	} {
		away.away, away.ended = true, 0
		s := &source{agent: a, memory: c.memory, slowed: c.slowed,
			move: &move{tracker: progress.NewTracker(migration.Spec{})}}
		err := s.untrack(t.Context())
		if (err != nil) != c.waits {
			t.Errorf("%s: %v", name, err)
		}
		away.away = false
		for range 2 { // the second finds nothing to do
			if err := s.untrack(t.Context()); err != nil {
				t.Errorf("%s, again: %v", name, err)
			}
		}
		if want := map[bool]int{true: 1}[c.waits]; away.ended != want {
			t.Errorf("%s: ended %d times, want %d", name, away.ended, want)
		}
	}
}
