package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestOneWriter: another process writes, or removes, files on which an agent relies.
func TestOneWriter(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, migration.Cold, patient)
	w.learnOrder(t)
	t.Run("a second agent touches nothing", w.secondAgent)
	t.Run("a target that has lost its journal", w.lostJournal)
	t.Run("a target that has lost its state", w.lostState)
	w.clientIsHappy(t)
}

// secondAgent starts an agent beside one whose migration is paused with the container frozen.
func (w *world) secondAgent(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	dumped := agent.Fault{Side: "source", Step: "dump", When: "after"}
	w.set(t, from, dumped, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, from, dumped)
	w.refused(t, from, "is locked by process", "agent", "--state", "/var/lib/godwit", "--run", "/run/godwit")
	w.refused(t, from, "is locked by process", "agent", "--state", "/var/lib/godwit", "--run",
		"/tmp/run-of-another")
	w.expectState(t, from, engine.Frozen)
	if r, _ := w.report(t, from, id); r.Result != migration.ResultRuns {
		t.Errorf("the migration is %s", r.Result)
	}
	w.goOn(t, from, dumped)
	w.end(t, from, id, true)
}

// losing brings a migration into doubt, lets the target continue or not, and removes files of its state
// while its agent does not run.
func (w *world) losing(t *testing.T, runs bool, files ...string) (from, to, id string) {
	t.Helper()
	point := beforeRestore
	if runs {
		point = afterRestore
	}
	from, to, id = w.doubtWithLink(t, point)
	w.linkDown(t)
	w.killAgent(t, to)
	w.unset(t)
	w.forget(t, to, id)
	state := filepath.Dir(filepath.Dir(w.journal(t, to, id)))
	for _, file := range files {
		if err := os.Remove(filepath.Join(state, file)); err != nil {
			t.Fatal(err)
		}
	}
	w.reviveAgents(t)
	w.linkUp(t)
	return from, to, id
}

// awaitAlarm waits until the source reports that only an operator can decide, and checks that it keeps its
// copy frozen meanwhile.
func (w *world) awaitAlarm(t *testing.T, from, id string, words ...string) {
	t.Helper()
	eventually(t, "the alarm", func() error {
		r, _ := w.report(t, from, id)
		for _, word := range append(words, "migration resolve "+id) {
			if !strings.Contains(r.Alarm, word) {
				return fmt.Errorf("it is %s, alarm %q, without %q", r.Result, r.Alarm, word)
			}
		}
		return nil
	})
	w.expectState(t, from, engine.Frozen)
	for _, args := range [][]string{{"migration", "ls"}, {"migration", "show", id}} {
		if out := w.must(t, from, args...); !strings.Contains(out, "ALARM") {
			t.Errorf("godwit %s: %s", strings.Join(args, " "), out)
		}
	}
	log, err := os.ReadFile(w.lab.AgentLog(from))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "only an operator can tell"); n != 1 {
		t.Errorf("the log tells of it %d times", n)
	}
	w.refused(t, from, "--force", "migration", "resolve", id, "--runs-at", "source")
}

// lostJournal: the target runs the container, and its journal of the migration is gone.
func (w *world) lostJournal(t *testing.T) {
	from, to, id := w.losing(t, true)
	w.expectState(t, to, engine.Running)
	w.awaitAlarm(t, from, id, "which is running since")
	w.must(t, from, "migration", "resolve", id, "--runs-at", "target", "--force")
	w.settle(t, id)
	if w.at != to {
		t.Errorf("it is on %s, want %s", w.at, to)
	}
	w.clientGoesOn(t)
}

// lostState is the last test: received data stays at the target without a journal.
func (w *world) lostState(t *testing.T) {
	from, _, id := w.losing(t, false, "incarnation.json")
	w.awaitAlarm(t, from, id, "lost, restored or copied")
	w.must(t, from, "migration", "resolve", id, "--runs-at", "source", "--force")
	w.expectState(t, from, engine.Running)
	w.clientGoesOn(t)
}
