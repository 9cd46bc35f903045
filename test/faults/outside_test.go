package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// Actions of others than the two agents.
const (
	engineStarts   kind = "engine-starts"    // starts the copy at the source
	engineRemoves  kind = "engine-removes"   // removes it
	somebodyThaws  kind = "thaw"             // its processes are thawed
	secondAgents   kind = "second-agents"    // a second agent is started on the state of each
	journalLost    kind = "journal-lost"     // of the source
	stateLost      kind = "state-lost"       // of the target
	stateBack      kind = "state-put-back"   // the target's state from before the container came
	stateCloned    kind = "state-cloned"     // the target's state is on another machine
	decideAtSource kind = "decide-at-source" // an operator decides at the source that it runs there
	decideAtTarget kind = "decide-at-target" // an operator decides at the target that it runs there
)

// outside lists the actions of others at the steps at which the copy at the source is frozen. Once the
// final marker has left, they must not lose anything; before that, a removal removes the container.
// Recovery of a target that has lost its state does not depend on the engine, so that is tested only with
// Godwit's own.
func outside(v via, mode migration.Mode) []fault {
	var all []fault
	add := func(side, when, step string, kinds ...kind) {
		for _, k := range kinds {
			if k != engineStarts || v.starts() != "" {
				all = append(all, fault{side, step, when, k})
			}
		}
	}
	others := []kind{engineStarts, engineRemoves, somebodyThaws, secondAgents, journalLost, decideAtSource,
		decideAtTarget}
	if mode == migration.PostCopy {
		add("source", "before", "drain", others...)
		return all
	}
	add("source", "after", "dump", secondAgents, journalLost)
	add("source", "after", "freeze", somebodyThaws)
	add("target", "before", "restore", others...)
	if v == embedded {
		others = append(others, stateLost, stateBack, stateCloned)
	}
	add("target", "after", "restore", others...)
	add("source", "before", "destroy", others...)
	return all
}

// secondAgentsAnywhere starts them at all steps of a migration.
func secondAgentsAnywhere() []fault {
	var all []fault
	for _, step := range append(slices.Clone(sourceSteps), "forward", "cleanup") {
		all = append(all, fault{"source", step, "before", secondAgents})
	}
	for _, step := range targetSteps[:len(targetSteps)-1] { // the last one is among the others
		all = append(all, fault{"target", step, "before", secondAgents})
	}
	return all
}

// TestOutside runs these actions with a container of Godwit's own.
func TestOutside(t *testing.T) {
	all := outside(embedded, migration.Cold)
	if !testing.Short() {
		all = append(all, secondAgentsAnywhere()...)
	}
	runFaults(t, migration.Cold, all, 9)
}

// TestOutsidePushing runs those that apply while the source has remote pages, with a container of each
// engine.
func TestOutsidePushing(t *testing.T) {
	for _, v := range []via{embedded, docker, podman, containerd, lxc} {
		if testing.Short() && v != embedded {
			continue
		}
		t.Run(v.String(),
			func(t *testing.T) { runFaultsVia(t, v, migration.PostCopy, outside(v, migration.PostCopy), 4) })
	}
}

// String returns the name of the engine.
func (v via) String() string {
	if v == embedded {
		return "embedded"
	}
	return string(v)
}

// fromOutside reports whether an outsider causes the fault.
func (f fault) fromOutside() bool {
	return slices.Contains([]kind{
		engineStarts, engineRemoves, somebodyThaws, secondAgents, journalLost, stateLost, stateBack,
		stateCloned,
		decideAtSource, decideAtTarget,
	}, f.kind)
}

// forgets reports whether the target no longer knows the migration.
func (f fault) forgets() bool { return f.kind == stateLost || f.kind == stateBack }

// moveOn moves the container away from a node that no longer knows its move: files that came with it leave
// with it.
func (w *world) moveOn(t *testing.T) {
	t.Helper()
	w.meet(t)
	w.settle(t, w.begin(t, w.at, other(w.at)))
	w.inOrder(t)
}

// movesNevertheless reports where the container is after the actions of others.
func (f fault) movesNevertheless() bool {
	switch f.kind {
	case somebodyThaws:
		return f.step != "freeze"
	case journalLost:
		return f.step != "dump"
	case decideAtSource:
		return f.step != "restore" || f.when != "before"
	}
	return true
}

// others performs the action while a step waits. The returned function waits for its end.
func (w *world) others(t *testing.T, f fault, from, to, id string) (over func()) {
	t.Helper()
	switch f.kind {
	case engineStarts:
		return w.beside(t, from, w.via.starts())
	case engineRemoves:
		return w.beside(t, from, w.via.removes())
	case somebodyThaws:
		w.inNode(t, from, "sh", "-c", fmt.Sprintf(thaws, w.find(t, from, container).PID))
	case secondAgents:
		for _, node := range nodes {
			w.refused(t, node, "is locked by process", "agent", "--state", "/var/lib/godwit", "--run",
				"/tmp/run-of-another")
		}
	case journalLost:
		w.killAgent(t, from)
		w.forget(t, from, id)
	case stateLost, stateBack, stateCloned:
		return w.tamper(t, f, from, to, id)
	case decideAtSource, decideAtTarget:
		return w.decide(t, f, from, to, id)
	}
	return func() {}
}

// thaws is a script that acts like an engine with Godwit's freezer, until the kernel says that the group of
// a process is not frozen: an agent in doubt freezes it again, as often as it looks.
const thaws = `groups=/proc/%d/cgroup
	d=$(findmnt -nt cgroup2 -o TARGET | head -n 1)$(sed -n 's/^0:://p' $groups)
	[ -e $d/cgroup.freeze ] || d=$(findmnt -nt cgroup -O freezer -o TARGET | head -n 1)$(sed -n 's/^[0-9]*:freezer://p' $groups)
	for try in 1 2 3 4 5 6 7 8 9; do
		if [ -e $d/cgroup.freeze ]; then
			echo 0 >$d/cgroup.freeze && grep -qx 'frozen 0' $d/cgroup.events && exit
		else
			echo THAWED >$d/freezer.state && grep -qx THAWED $d/freezer.state && exit
		fi
	done
	exit 1`

// beside runs a script on a node that may wait until the migration continues, and may fail.
func (w *world) beside(t *testing.T, node, script string) (over func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := w.lab.Exec(context.Background(), node, "sh", "-c", ": outside; "+script)
		done <- err
	}()
	eventually(t, script+" to be under way", func() error {
		if len(done) > 0 {
			return nil
		}
		_, err := w.lab.Exec(t.Context(), node, "pgrep", "-f", "^sh -c : outside")
		return err
	})
	return func() { t.Logf("%s: %v", script, <-done) }
}

// decide simulates an operator's decision, which may have to wait for the other node. A source whose agent
// was replaced is in doubt.
func (w *world) decide(t *testing.T, f fault, from, to, id string) (over func()) {
	t.Helper()
	node, side := from, "source"
	if f.kind == decideAtTarget {
		side = "target"
		if f.step == "destroy" || f.step == "drain" {
			node = to
		}
	}
	if f.side == "target" {
		w.killAgent(t, from)
		w.reviveAgents(t)
		w.awaitDoubt(t, from, id)
	}
	return w.beside(t, node, "godwit migration resolve "+id+" --runs-at "+side)
}

// keepOlder keeps a copy of the target's own state and of its migrations on disk, from before the container
// came.
func (w *world) keepOlder(t *testing.T, node string) {
	t.Helper()
	w.reach(t, node, beforeReceive)
	w.inNode(t, node, "sh", "-c", "set -e; rm -rf /tmp/older; mkdir /tmp/older; cd /var/lib/godwit; cp -a "+
		"migrations *.json /tmp/older")
	w.goOn(t, node, beforeReceive)
}

// tamper changes the target's state while its agent does not run. The target runs the container, so an
// operator says so.
func (w *world) tamper(t *testing.T, f fault, from, to, id string) (over func()) {
	t.Helper()
	w.killAgent(t, to)
	switch f.kind {
	case stateLost:
		state := filepath.Dir(filepath.Dir(w.journal(t, to, id)))
		w.forget(t, to, id)
		if err := os.Remove(filepath.Join(state, "incarnation.json")); err != nil {
			t.Fatal(err)
		}
	case stateBack:
		w.inNode(t, to, "sh", "-c", "set -e; cd /var/lib/godwit; rm -rf migrations *.json; cp -a "+
			"/tmp/older/* .; rm -rf /tmp/older")
	case stateCloned:
		w.inNode(t, to, "sh", "-c", "set -e; tr 0-9 1-90 </etc/machine-id >/tmp/machine-id; mount --bind "+
			"/tmp/machine-id /etc/machine-id")
	}
	return func() {
		w.reviveAgents(t)
		eventually(t, "an operator to be heard", func() error {
			_, err := w.godwit(t.Context(), from, "migration", "resolve", id, "--runs-at", "target",
				"--force")
			if r, _ := w.report(t, from, id); r.Result == migration.Moved {
				return nil
			}
			return errors.Join(err, errors.New("it is not over"))
		})
		if f.kind == stateCloned { // it is in its old place
			w.stopAgent(t, to)
			w.inNode(t, to, "sh", "-c", "umount /etc/machine-id; rm /tmp/machine-id")
			w.reviveAgents(t)
		}
	}
}
