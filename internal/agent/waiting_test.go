package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/transfer/progress"
)

var errAwayNow = errors.New("cannot connect")

// awayEngine answers nobody as long as it is away.
type awayEngine struct {
	engine.Engine
	away  bool
	ended int // throttles
}

func (*awayEngine) Name() string { return "away" }

func (e *awayEngine) Throttle(_ context.Context, _ string, cpus float64) error {
	if e.away {
		return errAwayNow
	}
	if cpus == 0 {
		e.ended++
	}
	return nil
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
