package faults

import (
	"fmt"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// afterRestore is the point at which the container runs at the target, whose agent does not know it yet.
var afterRestore = agent.Fault{Side: "target", Step: "restore", When: "after"}

// TestResolve: an operator decides while the nodes reach each other. The other node is asked first, and its
// answer counts.
func TestResolve(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, migration.Cold, patient)
	w.learnOrder(t)
	t.Run("taken back from a target that has not resumed it", w.takenBackInTime)
	t.Run("taken back from a target that may have resumed it", w.takenBackTooLate)
	t.Run("decided at the target", w.decidedAtTarget)
	w.clientIsHappy(t)
}

// doubtWithLink brings a migration whose target has stopped at a point into doubt: the source's agent is a
// new one then.
func (w *world) doubtWithLink(t *testing.T, point agent.Fault) (from, to, id string) {
	t.Helper()
	w.meet(t)
	from, to = w.at, other(w.at)
	w.set(t, to, point, agent.FaultPause)
	id = w.begin(t, from, to)
	w.reach(t, to, point)
	w.killAgent(t, from)
	w.reviveAgents(t)
	w.awaitDoubt(t, from, id)
	return from, to, id
}

func (w *world) takenBackInTime(t *testing.T) {
	from, _, id := w.doubtWithLink(t, beforeRestore)
	w.must(t, from, "migration", "resolve", id, "--runs-at", "source")
	r := w.end(t, from, id, false, "restarted", "operator decided")
	if !strings.Contains(strings.Join(r.Notes, " "), "operator decided") {
		t.Errorf("the report does not tell who decided: %+v", r)
	}
}

// takenBackTooLate decides while the container already runs at the target: the copy here must stay frozen
// until that is known, and after it.
func (w *world) takenBackTooLate(t *testing.T) {
	from, to, id := w.doubtWithLink(t, afterRestore)
	type answer struct {
		out string
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		out, err := w.godwit(t.Context(), from, "migration", "resolve", id, "--runs-at", "source")
		answered <- answer{out, err}
	}()
	eventually(t, "the operator to be heard", func() error {
		if r, _ := w.report(t, from, id); !strings.Contains(strings.Join(r.Notes, " "), "operator decided") {
			return fmt.Errorf("it says %+v", r.Notes)
		}
		return nil
	})
	w.expectState(t, from, engine.Frozen)
	w.goOn(t, to, afterRestore)
	got := <-answered
	if got.err == nil || !strings.Contains(got.out+got.err.Error(), "runs at") {
		t.Errorf("taken back although it runs at %s: %s %v", to, got.out, got.err)
	}
	w.end(t, from, id, true)
}

// decidedAtTarget does not wait for a source that has given its copy away and has not removed it yet.
func (w *world) decidedAtTarget(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	destroy := agent.Fault{Side: "source", Step: "destroy", When: "before"}
	w.set(t, from, destroy, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, from, destroy)
	w.refused(t, to, "resolve on "+from, "migration", "resolve", id, "--runs-at", "source")
	w.must(t, to, "migration", "resolve", id, "--runs-at", "target")
	w.goOn(t, from, destroy)
	w.end(t, from, id, true)
}
