package embedded

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
)

// boot has the effect of a loss of power on a node: its processes, cgroups, mounts and run directory are
// gone.
func (n *testNode) boot() *testNode {
	n.t.Helper()
	all, err := n.List(n.t.Context())
	for _, ctr := range all {
		place := n.paths.of(ctr.Definition.ID)
		err = errors.Join(err, killMonitor(place), sweep(n.t.Context(), n.processes.runc, place))
	}
	if err = errors.Join(err, mounts.UnmountBelow(n.paths.run), os.RemoveAll(n.paths.run)); err != nil {
		n.t.Fatal(err)
	}
	return n.reopen()
}

// TestBootLeaving checks that the record that a container leaves survives a boot, and prevents its start
// until the migration is undone.
func TestBootLeaving(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sh", "-c", "while :; do sleep 0.05; done"))
	leave := engine.Leave{Migration: "0123456789abcdef", Target: "b"}
	departure, err := n.PrepareDump(t.Context(), d.ID, engine.DumpOptions{Leave: leave})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { departure.Close() })
	if _, err := departure.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = n.boot()
	if ctr := n.state(d.ID); ctr.State != engine.Exited || ctr.Leaving == nil || ctr.Leaving.Target != "b" {
		t.Fatalf("after a boot it is %s, leaving as %+v", ctr.State, ctr.Leaving)
	}
	if err := n.Start(t.Context(), d.ID); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("it is started although it may be at b: %v", err)
	}
	if err := n.Protect(t.Context(), d.ID, nil, nil); err != nil {
		t.Errorf("protected, of which there is nothing: %v", err)
	}
	if err := n.Protect(t.Context(), d.ID, nil, func() { t.Error("it is said to be held") }); err == nil {
		t.Error("a copy that a migration has just frozen, and that is gone, counts as held")
	}
	if err := n.Resume(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	if ctr := n.state(d.ID); ctr.Leaving != nil {
		t.Errorf("leaving as %+v, after the migration was undone", ctr.Leaving)
	}
	if err := n.Start(t.Context(), d.ID); err != nil {
		t.Error(err)
	}
}

// TestOldDeparture checks that an agent takes over v0.1.0's note of a departure in the run directory.
func TestOldDeparture(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sleep", "600"))
	place := n.paths.of(d.ID)
	was := departureRecord{Started: time.Now(), Leave: engine.Leave{Target: "b"}}
	if err := durable.Save(place.oldDeparture(), was); err != nil {
		t.Fatal(err)
	}
	n = n.reopen()
	if ctr := n.state(d.ID); ctr.Leaving == nil || ctr.Leaving.Target != "b" {
		t.Errorf("leaving as %+v", ctr.Leaving)
	}
	if err := n.Resume(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	n = n.reopen()
	if ctr := n.state(d.ID); ctr.Leaving != nil || durable.Exists(place.oldDeparture()) {
		t.Errorf("leaving as %+v, after the migration was undone", ctr.Leaving)
	}
}
