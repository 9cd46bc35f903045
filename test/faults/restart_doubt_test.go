package faults

import (
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestRestartDoubt loses contact while the container runs on probation.
func TestRestartDoubt(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, migration.Restart, soon)
	w.learnOrder(t)
	healthy := agent.Fault{Side: "target", Step: "healthy", When: "before"}
	doubt := func(t *testing.T) (from, to, id string) {
		t.Helper()
		w.meet(t)
		from, to = w.at, other(w.at)
		w.set(t, to, healthy, agent.FaultPause)
		id = w.begin(t, from, to)
		w.reach(t, to, healthy)
		w.linkDown(t)
		w.awaitDoubt(t, from, id)
		return from, to, id
	}
	t.Run("an operator takes it back from who has it on probation", func(t *testing.T) {
		from, to, id := doubt(t)
		if out, err := w.godwit(t.Context(), to, "exec", container, "true"); err == nil ||
			!strings.Contains(err.Error(), "is being migrated") {
			t.Errorf("exec on probation: %s %v", out, err)
		}
		w.must(t, from, "migration", "resolve", id, "--runs-at", "source", "--force")
		w.expectState(t, from, engine.Running)
		w.linkUp(t) // the target notices while it waits
		r := w.end(t, from, id, false, "was silent")
		if !strings.Contains(strings.Join(r.Notes, " "), "operator decided") ||
			!strings.Contains(strings.Join(r.Decisions, " "), "started again at "+from) {
			t.Errorf("the report does not tell who decided: %+v", r)
		}
	})
	t.Run("an operator gives it away", func(t *testing.T) {
		from, to, id := doubt(t)
		w.goOn(t, to, healthy)
		w.expectState(t, to, engine.Running)
		w.expectState(t, from, engine.Frozen)
		w.must(t, from, "migration", "resolve", id, "--runs-at", "target", "--force")
		w.linkUp(t)
		w.end(t, from, id, true)
	})
	w.clientIsHappy(t)
}
