package agent

import (
	"context"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestDoubles has another node claim what runs here: once, for as long as a migration may make it
// seem so, and for good.
func TestDoubles(t *testing.T) {
	t.Parallel()
	const short = 0x1234
	now, runs := time.Unix(1000, 0), true
	a := &Agent{log: slog.New(slog.DiscardHandler), self: identity.Node{Name: "a"}}
	d := newDoubles(a)
	d.now = func() time.Time { return now }
	d.runs = func(engine.Definition) bool { return runs }
	moving := map[string]bool{}
	d.moving = func() map[string]bool { return moving }
	answers := true
	d.ended = func(engine.Definition) bool { return answers }
	d.unheard = func() bool { return !answers }
	d.running = func() (map[uint64]*engine.Definition, error) {
		if !runs {
			return nil, nil
		}
		return map[uint64]*engine.Definition{short: {Name: "web", ID: "x"}}, nil
	}
	hear := func(times int, claims ...uint64) {
		for range times {
			now = now.Add(cluster.HelloEvery / 2) // each says hello to the other
			d.heard("b", claims)
		}
	}
	raised := func(want bool, when string) {
		t.Helper()
		alarms := d.alarms()
		if (len(alarms) == 1) != want || len(alarms) > 1 {
			t.Errorf("%s: alarms %v, want one: %t", when, alarms, want)
		}
		if want && (alarms[0].Name != "web" || !strings.Contains(alarms[0].Text, "runs on b") ||
			alarms[0].Kind != alarmDouble) {
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
	d.heard("c", nil)
	raised(true, "another node does not claim it")
	runs, answers = false, false
	hear(1, short)
	raised(true, "its engine does not answer")
	answers = true
	raised(false, "it has ended here")
	runs = true
	hear(1)
	raised(false, "it has ended there")
	hear(2*doubleHeard, short)
	raised(true, "claimed again")
	moving["x"] = true
	raised(false, "it is being moved")
	if claims, _ := d.here(); len(claims) > 0 {
		t.Errorf("a container that is being moved is claimed: %x", claims)
	}
}

// slowToList is an engine that lists its containers when the test lets it, and answers no other question.
type slowToList struct {
	engine.Engine
	lists chan []engine.Container
}

func (s *slowToList) Name() string { return "slow" }

func (s *slowToList) List(context.Context) ([]engine.Container, error) { return <-s.lists, nil }

func (s *slowToList) Inspect(context.Context, string) (engine.Container, error) {
	return engine.Container{}, context.DeadlineExceeded
}

// TestDoublesOfASlowEngine: of an engine that takes longer than greetings wait, the containers count that
// ran when the engine answered last, for as long as their first processes run. An alarm ends when the
// engine has said that the container does not run, and not before.
func TestDoublesOfASlowEngine(t *testing.T) {
	a := newTestAgent(t)
	slow := &slowToList{lists: make(chan []engine.Container, 1)}
	own := &otherEngine{has: engine.Definition{ID: testContainer}}
	a.engines = engine.NewSet(own, slow)
	a.locations = newLocations(a)
	a.locations.all.age = func() time.Duration { return 0 }
	sleeps := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleeps.Start(); err != nil {
		t.Fatal(err)
	}
	web := engine.Definition{ID: strings.Repeat("a", 64), Name: "web", EngineName: "slow"}
	for now, started := uint64(0), ticksOf(t, sleeps.Process.Pid); now <= started; {
		var err error
		if now, err = kernel.Ticks(); err != nil {
			t.Fatal(err)
		}
	}
	a.locations.toldBy(slow).patience = time.Minute
	slow.lists <- []engine.Container{{Definition: web, State: engine.Running, PID: sleeps.Process.Pid}}
	d, now := newDoubles(a), time.Now()
	d.now = func() time.Time { return now }
	short, _ := claimOf(web.ID)
	if running, err := d.running(); err != nil || running[short] == nil {
		t.Fatalf("%v, %v", running, err)
	}
	a.locations.toldBy(slow).patience = time.Millisecond
	a.containersChanged(slow) // what is known of the engine is not valid any more
	for range 10 {
		now = now.Add(cluster.HelloEvery)
		if claims, _ := d.here(); !slices.Contains(claims, short) {
			t.Errorf("claims: %x", claims)
		}
		d.heard("a", []uint64{short})
	}
	alarmed := func(want int, when string) {
		t.Helper()
		if alarms := d.alarms(); len(alarms) != want {
			t.Errorf("%s: %v", when, alarms)
		}
	}
	alarmed(1, "the engine does not answer")
	if err := sleeps.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleeps.Wait()
	d.heard("a", []uint64{short})
	if claims, _ := d.here(); slices.Contains(claims, short) {
		t.Errorf("a process that has ended is claimed: %x", claims)
	}
	alarmed(1, "the engine may have started the container again")
	slow.lists <- nil
	for { // until that answer has come
		if _, err := a.locations.told(t.Context(), slow); err == nil {
			break
		}
	}
	d.heard("a", []uint64{short})
	alarmed(0, "the engine has answered")
	slow.lists <- nil // a look may be under way
}

// TestFreshAgentKnowsNoClaims: before each engine was heard an agent does not say what runs here. Other
// nodes would end alarms.
func TestFreshAgentKnowsNoClaims(t *testing.T) {
	a := newTestAgent(t)
	slow := &slowToList{lists: make(chan []engine.Container)}
	a.engines = engine.NewSet(&otherEngine{has: engine.Definition{ID: testContainer}}, slow)
	a.locations = newLocations(a)
	a.locations.all.age = func() time.Duration { return 0 }
	a.locations.toldBy(slow).patience = time.Millisecond
	d := newDoubles(a)
	for range 3 {
		if claims, known := d.here(); known {
			t.Errorf("%x is said to be all that runs", claims)
		}
	}
	web := engine.Definition{ID: strings.Repeat("a", 64), Name: "web", EngineName: "slow"}
	slow.lists <- []engine.Container{{Definition: web, State: engine.Running}}
	close(slow.lists)
	for known := false; !known; {
		_, known = d.here()
	}
}

func ticksOf(t *testing.T, pid int) uint64 {
	t.Helper()
	process, err := kernel.ReadProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return process.StartTicks
}

// TestClaimOf shortens ids, and refuses what is none.
func TestClaimOf(t *testing.T) {
	t.Parallel()
	if short, is := claimOf("00000000000012ff" + strings.Repeat("a", 48)); !is || short != 0x12ff {
		t.Errorf("got %x, %t", short, is)
	}
	for _, id := range []string{"", "12", strings.Repeat("x", 64), "-000000000000001"} {
		if _, is := claimOf(id); is {
			t.Errorf("%q was taken for an id", id)
		}
	}
}
