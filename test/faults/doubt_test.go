package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// beforeRestore is the point at which the source has sent everything and knows nothing yet.
var beforeRestore = agent.Fault{Side: "target", Step: "restore", When: "before"}

// TestDoubt loses contact when the source has given everything away: it must not run its copy again by
// itself.
func TestDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.learnOrder(t)
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"the link is lost while the state is sent", w.lostWhileSending},
		{"the link comes back", w.doubtResolvesItself},
		{"it is cancelled in doubt", w.doubtCancelled},
		{"the operator errs", w.operatorErrs},
		{"the target says running to who has forgotten", w.forgotten},
		{"the target is lost for good", w.targetLost},
	} {
		if !t.Run(c.name, c.run) {
			t.Fatal("the world cannot be used any more")
		}
	}
	w.clientIsHappy(t)
}

// lostWhileSending loses the link while the state is sent: the target cannot run the container, so the
// container continues at the source at once, and does not wait for the target.
func (w *world) lostWhileSending(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	freeze := agent.Fault{Side: "source", Step: "freeze", When: "before"}
	send := agent.Fault{Side: "source", Step: "send", When: "before"}
	w.set(t, from, freeze, agent.FaultPause)
	w.set(t, from, send, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, from, freeze)
	// This is a minute of data at the send's rate, so the final marker cannot leave before the link is
	// lost.
	noise := fmt.Sprintf("head -c 200000 /dev/urandom >/proc/%d/root/tmp/noise",
		w.find(t, from, container).PID)
	w.inNode(t, from, "sh", "-c", noise)
	w.goOn(t, from, freeze)
	w.reach(t, from, send)
	slow := 2e4
	_, err := w.agents[from].Set(t.Context(),
		&api.SetRequest{Migration: id, BandwidthLimitBitsPerSecond: &slow})
	if err != nil {
		t.Fatal(err)
	}
	w.goOn(t, from, send)
	eventually(t, "the final marker to be allowed", func() error {
		journal, err := os.ReadFile(filepath.Join(w.journal(t, from, id), "journal.json"))
		if err == nil && !strings.Contains(string(journal), `"final":true`) {
			err = fmt.Errorf("%s", journal)
		}
		return err
	})
	w.linkDown(t)
	eventually(t, "the migration to be undone without the target", func() error {
		if r, _ := w.report(t, from, id); r.Result != migration.RolledBack {
			return fmt.Errorf("it is %s", r.Result)
		}
		return nil
	})
	w.expectState(t, from, engine.Running)
	w.linkUp(t)
	w.end(t, from, id, false, "was silent", "lost")
}

// doubt brings a migration into doubt, with the link down, and the target waiting before its restore.
func (w *world) doubt(t *testing.T) (from, to, id string) {
	t.Helper()
	w.meet(t)
	from, to = w.at, other(w.at)
	w.set(t, to, beforeRestore, agent.FaultPause)
	id = w.begin(t, from, to)
	w.reach(t, to, beforeRestore)
	w.linkDown(t)
	w.awaitDoubt(t, from, id)
	return from, to, id
}

// awaitDoubt waits until the source is in doubt, and checks that it keeps its copy frozen.
func (w *world) awaitDoubt(t *testing.T, from, id string) {
	t.Helper()
	eventually(t, "the source to be in doubt", func() error {
		if r, known := w.report(t, from, id); !known || r.Result != migration.ResultDoubt {
			return fmt.Errorf("it is %s", r.Result)
		}
		return nil
	})
	w.expectState(t, from, engine.Frozen)
}

func (w *world) expectState(t *testing.T, node string, want engine.State) {
	t.Helper()
	eventually(t, fmt.Sprintf("the container to be %s on %s", want, node), func() error {
		list, err := w.containers(t.Context(), node)
		if err != nil {
			return err
		}
		for _, c := range list {
			if c.Definition.ID == w.id && c.State == want {
				return nil
			}
		}
		return fmt.Errorf("there is %+v", list)
	})
}

// end waits for the end of a migration and checks everything that must hold then.
func (w *world) end(t *testing.T, from, id string, moved bool, words ...string) migration.Report {
	t.Helper()
	w.settle(t, id)
	w.inOrder(t)
	w.unset(t)
	if (w.at != from) != moved {
		t.Errorf("it is on %s, want moved from %s: %t", w.at, from, moved)
	}
	r, known := w.report(t, from, id)
	if !known {
		t.Fatalf("%s knows nothing of migration %s", from, id)
	}
	w.reportTells(t, from, r, moved)
	if r.Error != nil && !containsAny(*r.Error, words) {
		t.Errorf("the source's report says %q, want one of %q in it", *r.Error, words)
	}
	w.clientGoesOn(t)
	return r
}

func (w *world) doubtResolvesItself(t *testing.T) {
	from, to, id := w.doubt(t)
	w.goOn(t, to, beforeRestore)
	w.expectState(t, to, engine.Running)  // It resumes without the source,
	w.expectState(t, from, engine.Frozen) // which must not before it knows.
	if r, _ := w.report(t, from, id); r.Result != migration.ResultDoubt {
		t.Errorf("without contact the source says %s", r.Result)
	}
	w.linkUp(t)
	w.end(t, from, id, true)
}

func (w *world) doubtCancelled(t *testing.T) {
	from, _, id := w.doubt(t)
	w.cancel(t, from, id)
	w.expectState(t, from, engine.Frozen) // A request does not decide where it runs.
	w.linkUp(t)
	w.end(t, from, id, false, "was silent")
}

// operatorErrs: an operator assumes that an unreachable target is lost, and runs the container. When the
// target is reachable again, its copy must not continue, and the clients of the other copy must not notice
// its end.
func (w *world) operatorErrs(t *testing.T) {
	from, to, id := w.doubt(t)
	w.goOn(t, to, beforeRestore)
	w.expectState(t, to, engine.Running)
	w.refused(t, from, "last contact with "+to, "migration", "resolve", id, "--runs-at", "source")
	w.expectState(t, from, engine.Frozen)
	w.must(t, from, "migration", "resolve", id, "--runs-at", "source", "--force")
	w.expectState(t, from, engine.Running)
	w.clientGoesOn(t)
	w.linkUp(t)
	r := w.end(t, from, id, false, "was silent")
	if !strings.Contains(strings.Join(r.Notes, " "), "operator decided") {
		t.Errorf("the report does not tell who decided: %+v", r)
	}
}

// forgotten is a target that has not heard the source's confirmation, when the source has already forgotten
// the migration.
func (w *world) forgotten(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	settle := agent.Fault{Side: "target", Step: "settle", When: "before"}
	w.set(t, to, settle, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, to, settle)
	eventually(t, "the source to be done", func() error {
		if r, _ := w.report(t, from, id); r.Result != migration.Moved {
			return fmt.Errorf("it is %s", r.Result)
		}
		return nil
	})
	w.killAgent(t, from)
	w.killAgent(t, to)
	w.forget(t, from, id)
	w.edit(t, to, id, `"begun":["reserve","arrive","receive","restore","settle"]`,
		`"begun":["reserve","arrive","receive","restore"]`)
	w.unset(t)
	w.reviveAgents(t)
	w.settle(t, id)
	w.inOrder(t)
	if r, _ := w.report(t, to, id); r.Result != migration.Moved {
		t.Errorf("the target says %s", r.Result)
	}
	w.clientGoesOn(t)
}

// clientNode is the node to which the client is attached.
const clientNode = "a"

// targetLost is the last test: one of the nodes is gone afterwards.
func (w *world) targetLost(t *testing.T) {
	w.meet(t)
	if w.at != clientNode { // a lost node forwards nothing
		id := w.begin(t, w.at, clientNode)
		w.end(t, other(clientNode), id, true)
	}
	from, to := w.at, other(w.at)
	w.set(t, to, beforeRestore, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, to, beforeRestore)
	if err := w.lab.Kill(to); err != nil {
		t.Fatal(err)
	}
	w.awaitDoubt(t, from, id)
	if out, err := w.godwit(t.Context(), from, "stop", container); err == nil ||
		!strings.Contains(err.Error(), "not known yet") {
		t.Errorf("stop in doubt: %s %v", out, err)
	}
	w.must(t, from, "migration", "resolve", id, "--runs-at", "source", "--force")
	w.expectState(t, from, engine.Running)
	eventually(t, "the migration to end", func() error {
		if r, _ := w.report(t, from, id); r.Result != migration.RolledBack {
			return fmt.Errorf("it is %s", r.Result)
		}
		return nil
	})
	if r, _ := w.report(t, from, id); !strings.Contains(strings.Join(r.Notes, " "), "operator decided") {
		t.Errorf("the report does not tell who decided: %+v", r)
	}
	w.clientGoesOn(t)
	eventually(t, from+" to be in order", func() error { return w.order[from+from].compare(w.look(t, from)) })
	if out, err := w.godwit(t.Context(), from, "migrate", container, to); err == nil {
		t.Errorf("it moved to a node that is lost: %s", out)
	}
	w.expectState(t, from, engine.Running)
	w.clientGoesOn(t)
}

// journal is the directory of a migration on a node.
func (w *world) journal(t *testing.T, node, id string) string {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "var/lib/godwit/migrations", id)
}

// forget removes the journal of a migration on a node whose agent does not run.
func (w *world) forget(t *testing.T, node, id string) {
	t.Helper()
	if err := os.RemoveAll(w.journal(t, node, id)); err != nil {
		t.Fatal(err)
	}
}

// edit changes the journal of a migration on a node whose agent does not run.
func (w *world) edit(t *testing.T, node, id, old, replacement string) {
	t.Helper()
	path := filepath.Join(w.journal(t, node, id), "journal.json")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(content), old, replacement, 1)
	if changed == string(content) {
		t.Fatalf("the journal has no %s: %s", old, content)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}
