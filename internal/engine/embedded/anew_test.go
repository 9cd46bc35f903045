package embedded

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/enginetest"
	"github.com/godwit/godwit/internal/files"
)

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func (n *testNode) state(id string) engine.Container {
	n.t.Helper()
	ctr, err := n.Inspect(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return ctr
}

const politeServer = `trap 'echo ends by 10; exit 7' USR1; trap '' TERM; httpd -p 8080; echo serves; while :; do sleep 0.02; done`

// serve starts a container that listens on a port and ends only by SIGUSR1.
func (n *testNode) serve(change ...func(*engine.Definition)) engine.Definition {
	n.t.Helper()
	d := definition(n.t, "/bin/sh", "-c", politeServer)
	d.StopSignal = "usr1"
	for _, c := range change {
		c(&d)
	}
	n.start(d)
	eventually(n.t.(*testing.T), "the server",
		func() bool { return strings.Contains(n.output(d.ID), "serves") })
	return d
}

func TestHaltAndRevive(t *testing.T) {
	n := newTestNode(t)
	d := n.serve()
	ports, err := n.Ports(t.Context(), d.ID)
	if want := []engine.Port{{Protocol: "tcp", Number: 8080}}; err != nil || !slices.Equal(ports, want) {
		t.Fatalf("ports %v, %v", ports, err)
	}
	if halted, err := n.Halted(t.Context(), d.ID); err != nil || halted {
		t.Fatalf("halted before: %t, %v", halted, err)
	}
	if at, err := n.Halt(t.Context(), d.ID,
		engine.Leave{Migration: "0123456789abcdef", Target: "b"}); err != nil || at.IsZero() {
		t.Fatal(at, err)
	}
	if ctr := n.state(d.ID); ctr.State != engine.Frozen || ctr.ExitCode != 7 {
		t.Errorf("halted: %+v", ctr)
	}
	if err := n.Remove(t.Context(), d.ID, true); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("removed: %v", err)
	}
	again := n.reopen()
	if ctr, err := again.Inspect(t.Context(), d.ID); err != nil || ctr.Leaving == nil ||
		ctr.Leaving.Target != "b" {
		t.Errorf("leaving as %+v, %v", ctr.Leaving, err)
	}
	if halted, err := again.Halted(t.Context(), d.ID); err != nil || !halted {
		t.Fatalf("halted: %t, %v", halted, err)
	}
	health, err := again.Revive(t.Context(), d.ID)
	if err != nil || !strings.Contains(health, "listens on tcp 8080") {
		t.Fatalf("revived: %q, %v", health, err)
	}
	if ctr := n.state(d.ID); ctr.State != engine.Running || ctr.PID == 0 {
		t.Errorf("revived: %+v", ctr)
	}
	eventually(t, "what both have said", func() bool {
		out := n.output(d.ID)
		return strings.Count(out, "serves") == 2 && strings.Contains(out, "ends by 10")
	})
	if halted, err := n.Halted(t.Context(), d.ID); err != nil || halted {
		t.Errorf("halted after: %t, %v", halted, err)
	}
	if health, err := n.Revive(t.Context(), d.ID); err != nil || health != "" {
		t.Errorf("revived again: %q, %v", health, err)
	}
}

// TestHaltedFindsWhatIsBeingStarted covers an agent that was killed while it restarted the container. The
// next agent waits for the start, and leaves its namespaces alone.
func TestHaltedFindsWhatIsBeingStarted(t *testing.T) {
	n := newTestNode(t)
	d := n.serve()
	if _, err := n.Halt(t.Context(), d.ID, engine.Leave{}); err != nil {
		t.Fatal(err)
	}
	place := n.paths.of(d.ID)
	if err := n.settle(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- n.bringUp(t.Context(), place, d, true) }() // as by the killed agent
	eventually(t, "its monitor", func() bool { return durable.Exists(place.runtime()) })
	if halted, err := n.reopen().Halted(t.Context(), d.ID); err != nil || halted ||
		durable.Exists(place.halted()) {
		t.Errorf("halted: %t, %v", halted, err)
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
	if ctr := n.state(d.ID); ctr.State != engine.Running {
		t.Errorf("%+v", ctr)
	}
}

func (n *testNode) reopen() *testNode {
	n.t.Helper()
	e, err := New(n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	return &testNode{e, n.t}
}

// TestHaltedEndsWhatWasToldTo covers an agent that was killed before a container that it had told to end
// had ended. The container cannot go on in that state.
func TestHaltedEndsWhatWasToldTo(t *testing.T) {
	n := newTestNode(t)
	// the signal does not end it
	d := n.serve(func(d *engine.Definition) { d.StopSignal, d.StopTimeout = "TERM", 3600 })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := n.Halt(ctx, d.ID, engine.Leave{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	before := n.state(d.ID)
	if before.State != engine.Running {
		t.Fatalf("%+v", before)
	}
	place := n.paths.of(d.ID)
	shorten(t, place, 0.2)
	if halted, err := n.Halted(t.Context(), d.ID); err != nil || !halted {
		t.Fatalf("halted: %t, %v", halted, err)
	}
	if _, err := n.Revive(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	if ctr := n.state(d.ID); ctr.State != engine.Running || ctr.PID == before.PID {
		t.Errorf("%+v", ctr)
	}
	// killed again, before it could record the restart
	if err := durable.Save(place.halted(),
		haltRecord{Init: checkpoint.Identity{PID: before.PID, StartTicks: 1}}); err != nil {
		t.Fatal(err)
	}
	if halted, err := n.Halted(t.Context(), d.ID); err != nil || halted || durable.Exists(place.halted()) {
		t.Errorf("halted: %t, %v", halted, err)
	}
}

// shorten changes the time that a container has to end.
func shorten(t *testing.T, place container, seconds float64) {
	t.Helper()
	var d engine.Definition
	if err := durable.Load(place.definition(), &d); err != nil {
		t.Fatal(err)
	}
	d.StopTimeout = seconds
	if err := durable.Save(place.definition(), d); err != nil {
		t.Fatal(err)
	}
}

// bring makes an arrival with the files of a halted container.
func bring(t *testing.T, from, to *testNode, d engine.Definition, ports []engine.Port) engine.Arrival {
	t.Helper()
	arrival, err := to.PrepareStart(t.Context(), d, newNetns(t), ports)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arrival.Close() })
	trees, err := from.Trees(t.Context(), d.ID)
	if err != nil {
		t.Fatal(err)
	}
	trees = slices.DeleteFunc(trees, func(tree files.Tree) bool { return tree.Kind == files.Memory })
	enginetest.CopyTrees(t, trees, arrival.TreePath)
	return arrival
}

func TestPrepareStart(t *testing.T) {
	a, b := newTestNode(t), newTestNode(t)
	for name, c := range map[string]struct {
		change func(*engine.Definition)
		ports  []engine.Port
	}{
		"ports": {func(*engine.Definition) {}, []engine.Port{{Protocol: "tcp", Number: 8080}}},
		"health check": {func(d *engine.Definition) {
			d.Health = &engine.Health{Command: []string{"/bin/test", "-e", "/healthy"}}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := a.serve(c.change, func(d *engine.Definition) {
				d.Args[2] = "echo $((x=$(cat /n 2>/dev/null || echo 0)+1)) >/n; (sleep 0.3; touch " +
					"/healthy) & " + d.Args[2]
			})
			if _, err := a.Halt(t.Context(), d.ID, engine.Leave{}); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(a.paths.of(d.ID).upper(), "healthy")); err != nil &&
				!errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			arrival := bring(t, a, b, d, c.ports)
			asked := false
			at, err := arrival.Restore(t.Context(), engine.Permission{Ask: func() error {
				asked = true
				if ctr := b.state(d.ID); ctr.State != engine.Arriving {
					t.Errorf("on probation: %+v", ctr)
				}
				return nil
			}})
			if err != nil || !asked || at.IsZero() {
				t.Fatal(asked, at, err)
			}
			if ctr := b.state(d.ID); ctr.State != engine.Running || ctr.PID == 0 {
				t.Errorf("started: %+v", ctr)
			}
			if outcome, err := b.Arrived(t.Context(), d.ID); err != nil || outcome != engine.Ran {
				t.Errorf("outcome %s, %v", outcome, err)
			}
			var said strings.Builder
			if code, err := b.Exec(t.Context(), d.ID, engine.Exec{Args: []string{"/bin/cat", "/n"},
				Stdout: &said}); err != nil || code != 0 || said.String() != "2\n" {
				t.Errorf("started so often: %q, %d, %v", said.String(), code, err)
			}
			if err := a.Destroy(t.Context(), d.ID, nil); err != nil {
				t.Fatal(err)
			}
			if err := b.Stop(t.Context(), d.ID, -1); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPrepareStartEndsWhatFails checks that an unhealthy or no longer wanted container is killed before
// anybody is told.
func TestPrepareStartEndsWhatFails(t *testing.T) {
	t.Parallel()
	a, b := newTestNode(t), newTestNode(t)
	denied := errors.New("denied")
	for name, c := range map[string]struct {
		change func(*engine.Definition)
		ports  []engine.Port
		answer error
		want   error
		words  string
	}{
		"no port": {func(d *engine.Definition) { d.StartTimeout = 0.3 },
			[]engine.Port{{Protocol: "tcp", Number: 81}}, nil,
			engine.ErrUnhealthy,
			"it does not listen on tcp 81, 300ms after it was started; its last output: serves"},
		"sick": {func(d *engine.Definition) {
			d.StartTimeout = 2
			d.Health = &engine.Health{Command: []string{"/bin/sh", "-c", "echo has a cold; exit 3"}}
		}, nil, nil, engine.ErrUnhealthy, "its health check fails with exit code 3 (has a cold)"},
		"hangs": {func(d *engine.Definition) {
			d.StartTimeout, d.Health = 3, &engine.Health{Command: []string{"/bin/sleep", "60"}, Timeout: 0.1}
		}, nil, nil, engine.ErrUnhealthy, "its health check takes longer than 0.1 s"},
		"ends": {func(d *engine.Definition) { d.Args[2] = "[ -e /n ] && exit 9; touch /n; " + d.Args[2] },
			nil, nil, engine.ErrUnhealthy, "it has ended with exit code 9"},
		"denied": {func(*engine.Definition) {}, []engine.Port{{Protocol: "tcp", Number: 8080}}, denied,
			denied, "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			d := a.serve(c.change)
			if _, err := a.Halt(t.Context(), d.ID, engine.Leave{}); err != nil {
				t.Fatal(err)
			}
			arrival := bring(t, a, b, d, c.ports)
			_, err := arrival.Restore(t.Context(), engine.Permission{Ask: func() error { return c.answer }})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("error %v, want %q", err, c.words)
			}
			if pids, err := b.Processes(t.Context(), d.ID); err == nil && len(pids) > 0 {
				t.Errorf("processes %v are left", pids)
			}
			if outcome, err := b.Arrived(t.Context(), d.ID); err != nil || outcome != engine.NeverRan {
				t.Errorf("outcome %s, %v", outcome, err)
			}
			if err := errors.Join(arrival.Close(), b.Discard(t.Context(), d.ID)); err != nil {
				t.Error(err)
			}
			if _, err := b.Inspect(t.Context(), d.ID); !errors.Is(err, engine.ErrNotFound) {
				t.Errorf("after it was discarded: %v", err)
			}
			if err := a.Destroy(t.Context(), d.ID, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestArrivedEndsProbation checks that another agent ends a container that is still on probation for an
// agent that is gone.
func TestArrivedEndsProbation(t *testing.T) {
	a, b := newTestNode(t), newTestNode(t)
	d := a.serve()
	if _, err := a.Halt(t.Context(), d.ID, engine.Leave{}); err != nil {
		t.Fatal(err)
	}
	arrival := bring(t, a, b, d, []engine.Port{{Protocol: "tcp", Number: 8080}})
	_, err := arrival.Restore(t.Context(), engine.Permission{Ask: func() error {
		outcome, err := b.reopen().Arrived(t.Context(), d.ID)
		if err != nil || outcome != engine.NeverRan {
			t.Errorf("outcome %s, %v", outcome, err)
		}
		if pids, err := b.Processes(t.Context(), d.ID); err == nil && len(pids) > 0 {
			t.Errorf("processes %v are left", pids)
		}
		return errors.New("gone")
	}})
	if err == nil {
		t.Error("it stays")
	}
	if err := errors.Join(b.Discard(t.Context(), d.ID), a.Destroy(t.Context(), d.ID, nil)); err != nil {
		t.Error(err)
	}
}
