package enginetest

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// Fixture makes nodes with one engine each. Containers are made from an image with a busybox in /bin, a
// user ann (1001:1002, member of group staff, 50) and nothing else of importance.
type Fixture interface {
	// NewNode makes a node, and removes it with its contents when the test ends.
	NewNode(t *testing.T) Node
}

// Node is one node with an engine.
type Node interface {
	engine.Engine
	// Define fills in the fields that the suite leaves open: id, name and image. It makes nothing.
	Define(t *testing.T, d engine.Definition) engine.Definition
	// Run makes and starts a container.
	Run(t *testing.T, d engine.Definition)
	// TryRun is Run that may fail.
	TryRun(t *testing.T, d engine.Definition) error
	// Netns makes a network namespace, with only a loopback link, for an arrival.
	Netns(t *testing.T) string
	// Reopen makes a new engine on the same node, as after a crash of the agent: the old one is
	// just no longer used.
	Reopen(t *testing.T) Node
}

// patience bounds all waiting in the suite.
const patience = 2 * time.Minute

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run defines and runs a shell script.
func run(t *testing.T, n Node, script string, change ...func(*engine.Definition)) engine.Definition {
	t.Helper()
	d := define(t, n, script, change...)
	n.Run(t, d)
	return d
}

func define(t *testing.T, n Node, script string, change ...func(*engine.Definition)) engine.Definition {
	t.Helper()
	d := engine.Definition{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}}
	for _, c := range change {
		c(&d)
	}
	return n.Define(t, d)
}

// state returns a container's current state.
func state(t *testing.T, n Node, id string) engine.Container {
	t.Helper()
	ctr, err := n.Inspect(t.Context(), id)
	must(t, err)
	return ctr
}

// ended waits for a container's end.
func ended(t *testing.T, n Node, id string) engine.Container {
	t.Helper()
	eventually(t, "the container's end", func() bool { return state(t, n, id).State == engine.Exited })
	return state(t, n, id)
}

// output returns a container's output on a stream ("" for both).
func output(t *testing.T, n Node, id, stream string) string {
	t.Helper()
	var all strings.Builder
	must(t, n.Logs(t.Context(), id, engine.LogOptions{Tail: -1}, func(e engine.LogEntry) error {
		if stream == "" || e.Stream == stream {
			all.Write(e.Data)
		}
		return nil
	}))
	return all.String()
}

// said waits until a container has written something.
func said(t *testing.T, n Node, id, text string) {
	t.Helper()
	eventually(t, "output "+text, func() bool { return strings.Contains(output(t, n, id, ""), text) })
}

// execute runs a shell command in a container and returns its output and exit code.
func execute(t *testing.T, n Node, id, script string) (string, int) {
	t.Helper()
	var out strings.Builder
	code, err := n.Exec(t.Context(), id, engine.Exec{
		Args: []string{"/bin/sh", "-c", script}, Stdout: &out, Stderr: &out,
	})
	must(t, err)
	return out.String(), code
}

// trip is a move that a test controls.
type trip struct {
	from, to  Node
	id        string
	stay      []string // volumes that stay
	departure engine.Departure
	arrival   engine.Arrival
}

// prepare does the work before the freeze.
func prepare(t *testing.T, from, to Node, id string) *trip {
	t.Helper()
	return prepareStaying(t, from, to, id)
}

// prepareStaying is prepare for a move in which some volumes stay.
func prepareStaying(t *testing.T, from, to Node, id string, stay ...string) *trip {
	t.Helper()
	trip := &trip{from: from, to: to, id: id, stay: stay}
	ctr := state(t, from, id)
	ctr.Definition = staying(ctr.Definition, stay...)
	problems, err := from.Examine(t.Context(), id)
	must(t, err)
	if len(problems) > 0 {
		t.Fatalf("Examine: %+v", problems)
	}
	problems, err = to.Reserve(t.Context(), ctr.Definition)
	must(t, err)
	if len(problems) > 0 {
		t.Fatalf("Reserve: %+v", problems)
	}
	trip.arrival, err = to.PrepareRestore(t.Context(), ctr.Definition, to.Netns(t))
	must(t, err)
	t.Cleanup(func() { _ = trip.arrival.Close() })
	if late, is := trip.arrival.(engine.LateArrival); is {
		must(t, late.Start(t.Context()))
	}
	trip.departure, err = from.PrepareDump(t.Context(), id, engine.DumpOptions{Leave: leave})
	must(t, err)
	t.Cleanup(func() { _ = trip.departure.Close() })
	return trip
}

// leave is the Leave of containers in these tests.
var leave = engine.Leave{Migration: "0123456789abcdef", Target: "b", Mode: "cold",
	Started: time.Unix(1_700_000_000, 0).UTC(), Stay: []string{"data"}}

// freeze freezes the container, dumps it, and copies its whole state to the target.
func (m *trip) freeze(t *testing.T) {
	t.Helper()
	must(t, m.departure.Settle(t.Context()))
	_, err := m.departure.Freeze(t.Context())
	must(t, err)
	if got := state(t, m.from, m.id); got.State != engine.Frozen || got.Leaving == nil ||
		!reflect.DeepEqual(*got.Leaving, leave) {
		t.Errorf("after Freeze it is %s, leaving as %+v, want %+v", got.State, got.Leaving, leave)
	}
	images := t.TempDir()
	must(t, m.departure.Dump(t.Context(), images))
	if got := state(t, m.from, m.id).State; got != engine.Frozen {
		t.Errorf("state after Dump: %s", got)
	}
	copyImages(t, images, m.arrival.ImagesDir())
	trees, err := m.from.Trees(t.Context(), m.id)
	must(t, err)
	trees = slices.DeleteFunc(trees, func(tree files.Tree) bool { return slices.Contains(m.stay, tree.Name) })
	CopyTrees(t, trees, m.arrival.TreePath)
}

func copyImages(t *testing.T, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	must(t, err)
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(from, entry.Name()))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, entry.Name()), data, 0o600))
	}
}

// granted lets a container run.
var granted = engine.Permission{Ask: func() error { return nil }}

// move moves a container from beginning to end.
func move(t *testing.T, from, to Node, id string) {
	t.Helper()
	moveStaying(t, from, to, id)
}

// moveStaying is move with volumes that stay.
func moveStaying(t *testing.T, from, to Node, id string, stay ...string) {
	t.Helper()
	m := prepareStaying(t, from, to, id, stay...)
	m.freeze(t)
	before := time.Now()
	at, err := m.arrival.Restore(t.Context(), granted)
	must(t, err)
	if at.Before(before) || at.After(time.Now()) {
		t.Errorf("Restore says that it resumed at %v", at)
	}
	must(t, m.from.Destroy(t.Context(), id, stay))
	must(t, m.departure.Close())
	must(t, m.arrival.Close())
}
