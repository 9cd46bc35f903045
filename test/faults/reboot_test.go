package faults

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

// TestReboot simulates a power failure of a node in the middle of a migration: all its processes, and all
// data that is not on its disk, are lost. The container must never run twice; if the node went down with
// it, it has ended, as with any reboot.
func TestReboot(t *testing.T) {
	t.Parallel()
	w := newNodes(t, lab.Config{})
	w.loadRedis(t, "a")
	w.rebootEach(t, []rebooted{
		{agent.Fault{Side: "source", Step: "stage", When: "before"}, "source", "source", engine.Exited,
			migration.RolledBack},
		{agent.Fault{Side: "source", Step: "dump", When: "before"}, "source", "source", engine.Exited,
			migration.RolledBack},
		{agent.Fault{Side: "target", Step: "arrive", When: "after"}, "target", "source", engine.Running,
			migration.RolledBack},
		{beforeRestore, "target", "source", engine.Running, migration.RolledBack},
		{beforeRestore, "source", "target", engine.Running, migration.Moved},
		{agent.Fault{Side: "target", Step: "restore", When: "after"}, "target", "target", engine.Exited,
			migration.Moved},
		{agent.Fault{Side: "source", Step: "destroy", When: "before"}, "source", "target", engine.Running,
			migration.Moved},
	})
}

// TestRestartReboot does the same in mode restart. A container that was stopped for the migration is
// started again, even after a reboot; one that ran, and was not to be stopped, has ended as with any
// reboot.
func TestRestartReboot(t *testing.T) {
	t.Parallel()
	w := newNodes(t, lab.Config{})
	w.mode = migration.Restart
	w.loadRedis(t, "a")
	healthy := agent.Fault{Side: "target", Step: "healthy", When: "before"}
	w.rebootEach(t, []rebooted{
		{agent.Fault{Side: "source", Step: "stop", When: "after"}, "source", "source", engine.Running,
			migration.RolledBack},
		{agent.Fault{Side: "source", Step: "stop", When: "before"}, "source", "source", engine.Exited,
			migration.RolledBack},
		{healthy, "target", "source", engine.Running, migration.RolledBack},
		{healthy, "source", "target", engine.Running, migration.Moved},
		{agent.Fault{Side: "target", Step: "start", When: "after"}, "target", "target", engine.Exited,
			migration.Moved},
	})
}

// rebooted is a node that goes down at a point of a migration.
type rebooted struct {
	point  agent.Fault
	node   string // that goes down: source or target
	at     string // node of the container then
	state  engine.State
	result migration.Result
}

func (w *world) rebootEach(t *testing.T, all []rebooted) {
	for _, c := range all {
		ok := t.Run(c.node+" at "+c.point.Side+" "+c.point.Step+" "+c.point.When,
			func(t *testing.T) { w.rebootAt(t, c) })
		if !ok {
			break
		}
	}
}

func (w *world) rebootAt(t *testing.T, c rebooted) {
	w.meet(t)
	const from, to = "a", "b"
	side := map[string]string{"source": from, "target": to}
	w.must(t, from, "run", "-d", "--name", container, "--restart", cmp.Or(w.policy, "no"), "redis")
	w.id = w.find(t, from, container).Definition.ID
	w.set(t, side[c.point.Side], c.point, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, side[c.point.Side], c.point)
	w.reboot(t, side[c.node])
	if c.node != c.point.Side {
		w.goOn(t, side[c.point.Side], c.point)
	}
	w.reviveAgents(t)
	w.ended(t, id, c.result)
	w.expectState(t, side[c.at], c.state)
	w.unset(t)
	nowhere := other(side[c.at])
	w.nothingOf(t, nowhere)
	w.must(t, side[c.at], "rm", "--force", container)
	w.nothingOf(t, side[c.at])
}

// ended waits until a migration has ended on both nodes, and checks their reports. The target may not know
// the migration.
func (w *world) ended(t *testing.T, id string, want migration.Result) {
	t.Helper()
	eventually(t, "the migration to end as "+string(want), func() error {
		for i, node := range nodes {
			if r, known := w.report(t, node, id); r.Result != want && (known || i == 0) {
				return fmt.Errorf("on %s it is %s: %s", node, r.Result, deref(r.Error))
			}
		}
		return nil
	})
}

// nothingOf checks that a node has nothing with the container's id.
func (w *world) nothingOf(t *testing.T, node string) {
	t.Helper()
	eventually(t, "nothing of the container to be left on "+node, func() error {
		var left []error
		for line := range w.look(t, node) {
			if strings.Contains(line, w.id) || strings.Contains(line, "device veth") ||
				strings.Contains(line, "element of set godwit containers") {
				left = append(left, errors.New(line))
			}
		}
		return errors.Join(left...)
	})
}

// reboot simulates a power failure of a node and its return.
func (w *world) reboot(t *testing.T, node string) {
	t.Helper()
	if err := w.lab.Reboot(node); err != nil {
		t.Fatal(err)
	}
	w.agents[node] = w.dial(t, node)
}
