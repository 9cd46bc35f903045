package location

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
)

// moves are migrations that the test knows of.
type moves struct{ moving, departed map[string]bool }

func (m moves) Moving(container string) bool { return m.moving[container] }

func (m moves) Departed(container string) bool { return m.departed[container] }

func (m moves) AllMoving() map[string]bool { return m.moving }

// onlyEngine is an engine that has one container, or fails.
type onlyEngine struct {
	engine.Engine
	state engine.State
	fails error
}

func (*onlyEngine) Name() string { return "docker" }

func (*onlyEngine) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (e *onlyEngine) Inspect(_ context.Context, container string) (engine.Container, error) {
	return engine.Container{Definition: engine.Definition{ID: container}, State: e.state}, e.fails
}

const short = 0x1234

// running is a node on which container web runs, or does not.
type running struct {
	runs, answers, hangs, yet bool
}

func (r *running) Running(context.Context) (map[uint64]*engine.Definition, error) {
	if !r.runs {
		return nil, nil
	}
	return map[uint64]*engine.Definition{short: {Name: "web", ID: "x"}}, nil
}

func (r *running) Unheard() bool { return !r.answers }

func (r *running) Ended(engine.Definition) bool { return r.answers }

func (r *running) Hangs(engine.Engine) bool { return r.hangs }

func (r *running) RunsYet(engine.Engine, string) bool { return r.yet }

// TestDoubles has another node claim what runs here: once, for as long as a migration may make it
// seem so, and for good.
func TestDoubles(t *testing.T) {
	t.Parallel()
	now, here := time.Unix(1000, 0), &running{runs: true, answers: true}
	moving := map[string]bool{}
	d := NewDoubles(t.Context(), DoublesConfig{
		Self: "a", Here: here, Engines: engine.NewSet(&onlyEngine{state: engine.Running}),
		Moves: moves{moving: moving}, Log: slog.New(slog.DiscardHandler),
	})
	d.now = func() time.Time { return now }
	hear := func(times int, claims ...uint64) {
		for range times {
			now = now.Add(cluster.HelloEvery / 2) // each says hello to the other
			d.HearClaims("b", claims)
		}
	}
	raised := func(want bool, when string) {
		t.Helper()
		alarms := d.Alarms()
		if (len(alarms) == 1) != want || len(alarms) > 1 {
			t.Errorf("%s: alarms %v, want one: %t", when, alarms, want)
		}
		if want && (alarms[0].Name != "web" || !strings.Contains(alarms[0].Text, "runs on b") ||
			alarms[0].Kind != AlarmDouble) {
			t.Errorf("%s: %v", when, alarms)
		}
	}
	hear(20, 0x9999)
	raised(false, "another container")
	for range 10 { // as it moves to and fro
		hear(doubleHeard, short)
		raised(false, "claimed for a moment")
		hear(1)
	}
	hear(2*doubleHeard, short)
	raised(true, "claimed for long")
	d.HearClaims("c", nil)
	raised(true, "another node does not claim it")
	here.runs, here.answers = false, false
	hear(1, short)
	raised(true, "its engine does not answer")
	here.answers = true
	raised(false, "it has ended here")
	here.runs = true
	hear(1)
	raised(false, "it has ended there")
	hear(2*doubleHeard, short)
	raised(true, "claimed again")
	moving["x"] = true
	raised(false, "it is being moved")
	if claims, _ := d.Claims(); len(claims) > 0 {
		t.Errorf("a container that is being moved is claimed: %x", claims)
	}
}

// TestClaimsOfAFreshAgent: before each engine was heard an agent does not say what runs here. Other nodes
// would end alarms.
func TestClaimsOfAFreshAgent(t *testing.T) {
	here := &running{runs: true}
	d := NewDoubles(t.Context(), DoublesConfig{Here: here, Moves: moves{}})
	if claims, known := d.Claims(); known || len(claims) != 1 {
		t.Errorf("%x is said to be all that runs: %t", claims, known)
	}
	here.answers = true
	if _, known := d.Claims(); !known {
		t.Error("all engines have answered")
	}
}

// TestRunsHere: the engine says whether a container runs. If it does not answer, its first process does.
func TestRunsHere(t *testing.T) {
	down := errors.New("it does not answer")
	for name, c := range map[string]struct {
		of   onlyEngine
		here running
		want bool
	}{
		"it runs":                     {onlyEngine{state: engine.Running}, running{}, true},
		"it has ended":                {onlyEngine{state: engine.Exited}, running{yet: true}, false},
		"it was removed":              {onlyEngine{fails: engine.ErrNotFound}, running{yet: true}, false},
		"no answer, its process runs": {onlyEngine{fails: down}, running{yet: true}, true},
		"no answer, nothing runs":     {onlyEngine{fails: down}, running{}, false},
		"it hangs": {onlyEngine{state: engine.Exited}, running{hangs: true, yet: true},
			true},
	} {
		moving := map[string]bool{}
		d := NewDoubles(t.Context(), DoublesConfig{Here: &c.here, Engines: engine.NewSet(&c.of),
			Moves: moves{moving: moving}})
		if runs := d.runsHere(engine.Definition{ID: "x"}); runs != c.want {
			t.Errorf("%s: runs: %t", name, runs)
		}
		if moving["x"] = true; d.runsHere(engine.Definition{ID: "x"}) {
			t.Errorf("%s: it is being moved", name)
		}
	}
}
