// Package faults makes everything go wrong, at every step of a migration, and checks what must hold whatever happens:
// the container runs at exactly one node at the end, its client noticed at most a gap, nothing is left over, and the
// report says what happened.
//
// The lab, CRIU, runc and Redis are real. A fault is a value: at which step of which side, and what.
package faults

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
)

func TestMain(m *testing.M) {
	lab.RunHidden()
	os.Exit(m.Run())
}

// fault is what goes wrong, and when.
type fault struct {
	side string // source or target: whose step it is
	step string
	when string // before or after the step
	kind kind
}

func (f fault) String() string {
	return strings.Join([]string{f.side, f.step, f.when, string(f.kind)}, "/")
}

type kind string

const (
	killSource kind = "kill-source" // the source's agent
	killTarget kind = "kill-target"
	linkBlinks kind = "link-blinks" // it is down until both agents have noticed, and comes back
	stepFails  kind = "step-fails"
	userStops  kind = "cancel"
)

// steps are those at which something can go wrong, in order, by side. At the commit and after it only what kills or
// disconnects makes sense: those steps are repeated until they succeed.
func faults() []fault {
	var all []fault
	add := func(side string, steps []string, kinds ...kind) {
		for _, step := range steps {
			for _, k := range kinds {
				all = append(all, fault{side, step, "before", k})
			}
		}
	}
	before := []string{"examine", "stage", "prepare", "hold", "freeze", "dump", "send"}
	add("source", before, killSource, killTarget, linkBlinks, stepFails, userStops)
	add("target", []string{"reserve", "arrive", "receive", "restore"}, killSource, killTarget, linkBlinks, stepFails, userStops)
	add("source", []string{"forward", "destroy", "cleanup"}, killSource, killTarget, linkBlinks, stepFails)
	add("target", []string{"settle"}, killSource, killTarget, linkBlinks)
	for _, k := range []kind{killSource, killTarget, linkBlinks, userStops} {
		all = append(all, fault{"source", "send", "after", k}, fault{"target", "restore", "after", k})
	}
	return all
}

// TestFaults runs every combination, one after the other, with one container that moves to and fro. With -short it runs
// every fifth.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	for i, f := range faults() {
		if testing.Short() && i%5 != 0 {
			continue
		}
		t.Run(f.String(), func(t *testing.T) { w.suffer(t, f) })
		if t.Failed() && w.broken {
			t.Fatal("the world cannot be used any more")
		}
	}
	w.clientIsHappy(t)
}

// suffer migrates while a fault happens, and checks what must hold then.
func (w *world) suffer(t *testing.T, f fault) {
	from, to := w.at, other(w.at)
	node := from
	if f.side == "target" {
		node = to
	}
	w.restartAgent(t, node, "--fault", strings.Join([]string{f.side, f.step, f.when, "pause"}, ":"))
	if f.kind == stepFails {
		w.restartAgent(t, node, "--fault", strings.Join([]string{f.side, f.step, f.when, "fail"}, ":"))
	}
	id := w.begin(t, from, to)
	if f.kind != stepFails {
		w.reach(t, node, f)
		w.happen(t, f, from, to, id)
	}
	w.settle(t, id)
	w.nothingLeft(t)
	w.reportTells(t, f, from, id)
	w.clientGoesOn(t)
}

// happen makes the fault happen while a step waits for it, and then lets the step go on.
func (w *world) happen(t *testing.T, f fault, from, to, id string) {
	t.Helper()
	ctx := t.Context()
	file := w.faultFile(t, w.nodeOf(f, from, to), f)
	switch f.kind {
	case killSource:
		w.killAgent(t, from)
	case killTarget:
		w.killAgent(t, to)
	case userStops:
		// Too late is a good answer, at the steps after the commit.
		if out, err := w.godwit(ctx, from, "migration", "cancel", id); err != nil && !strings.Contains(err.Error(), "too late") {
			t.Errorf("cancel: %v %s", err, out)
		}
	case linkBlinks:
		w.linkDown(t)
	case stepFails:
	}
	remove(t, file)
	if f.kind == linkBlinks {
		w.waitUnreachable(t, from, to)
		w.linkUp(t)
	}
	w.reviveAgents(t)
}

func (w *world) nodeOf(f fault, from, to string) string {
	if f.side == "target" {
		return to
	}
	return from
}

func (w *world) faultFile(t *testing.T, node string, f fault) string {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "run/godwit/faults", f.side+"-"+f.step+"-"+f.when)
}

// reach waits until the step is reached at which the fault shall happen.
func (w *world) reach(t *testing.T, node string, f fault) {
	t.Helper()
	file := w.faultFile(t, node, f)
	eventually(t, "step "+f.step+" of the "+f.side+" to be reached", func() error {
		_, err := os.Stat(file)
		return err
	})
}

func remove(t *testing.T, file string) {
	t.Helper()
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited too long for %s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func other(node string) string {
	if node == "a" {
		return "b"
	}
	return "a"
}
