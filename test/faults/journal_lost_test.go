package faults

import (
	"fmt"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
)

// TestJournalLost loses the source's journal while the container is frozen. The engine's note of the
// departure names the node to ask: nothing stays frozen, and nothing runs twice.
func TestJournalLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.learnOrder(t)
	t.Run("it runs at the target", w.lostAfterCommit)
	t.Run("it never ran there", w.lostBeforeFinal)
	t.Run("the target cannot be reached", w.lostAndAlone)
	w.clientIsHappy(t)
}

// loseJournal stops a migration at a point of the source and kills the agent there. The agent comes back
// without its journal.
func (w *world) loseJournal(t *testing.T, step, when string, meanwhile func()) (from, to, id string) {
	t.Helper()
	w.meet(t)
	from, to = w.at, other(w.at)
	point := agent.Fault{Side: "source", Step: step, When: when}
	w.set(t, from, point, agent.FaultPause)
	id = w.begin(t, from, to)
	w.reach(t, from, point)
	w.killAgent(t, from)
	w.forget(t, from, id)
	w.unset(t)
	meanwhile()
	w.reviveAgents(t)
	return from, to, id
}

func (w *world) lostAfterCommit(t *testing.T) {
	from, _, id := w.loseJournal(t, "destroy", "before", func() {})
	r := w.end(t, from, id, true)
	if !strings.Contains(strings.Join(r.Notes, " "), "made anew") {
		t.Errorf("the report does not tell that the journal was lost: %+v", r)
	}
}

func (w *world) lostBeforeFinal(t *testing.T) {
	from, _, id := w.loseJournal(t, "dump", "after", func() {})
	w.end(t, from, id, false, "made anew")
}

// lostAndAlone cannot ask: it says so wherever a user looks, names the remedy, and continues only by an
// operator's decision.
func (w *world) lostAndAlone(t *testing.T) {
	from, to, id := w.loseJournal(t, "dump", "after", func() { w.linkDown(t) })
	w.awaitDoubt(t, from, id)
	w.refused(t, from, "journal of its migration to "+to+" is lost", "ps")
	w.refused(t, from, "godwit thaw", "stop", container)
	w.refused(t, from, "last contact with "+to, "thaw", container)
	w.expectState(t, from, engine.Frozen)
	w.must(t, from, "thaw", container, "--force")
	w.expectState(t, from, engine.Running)
	w.must(t, from, "ps")
	w.refused(t, from, "no migration has left "+container+" frozen", "thaw", container)
	w.linkUp(t)
	eventually(t, to+" to hear of it", func() error {
		if _, err := w.godwit(t.Context(), to, "ps"); err != nil {
			return fmt.Errorf("ps: %w", err)
		}
		return nil
	})
	w.end(t, from, id, false, "made anew")
}

// TestTwoRun: an operator errs, and both nodes lose their record of it: each reports that two copies run,
// until there is one.
func TestTwoRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	from, to, id := w.loseJournal(t, "destroy", "before", func() { w.linkDown(t) })
	w.awaitDoubt(t, from, id)
	w.stop() // its client should not judge this
	w.must(t, from, "thaw", container, "--force")
	w.expectState(t, to, engine.Running)
	for _, node := range nodes {
		w.killAgent(t, node)
		w.forget(t, node, id)
	}
	w.linkUp(t)
	w.reviveAgents(t)
	for _, node := range nodes {
		eventually(t, node+" to tell of two", func() error {
			out, err := w.godwit(t.Context(), node, "ps")
			if err == nil || !strings.Contains(out+err.Error(), "runs on "+other(node)+", too") {
				return fmt.Errorf("ps: %s %w", out, err)
			}
			return nil
		})
	}
	w.must(t, to, "rm", "--force", container)
	eventually(t, "the alarm to end", func() error {
		_, err := w.godwit(t.Context(), from, "ps")
		return err
	})
	w.expectState(t, from, engine.Running)
}
