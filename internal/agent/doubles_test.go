package agent

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
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
