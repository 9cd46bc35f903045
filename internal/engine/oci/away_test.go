package oci

import (
	"errors"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// away is the adapter of an engine that is not available. Any other query fails the test.
type away struct{ Adapter }

func (away) Name() string       { return "some" }
func (away) Title() string      { return "Some" }
func (away) Programs() []string { return []string{"some"} }
func (away) Away() error        { return engine.ErrAway }

func awayEngine(t *testing.T) *Engine {
	t.Helper()
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, away{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// adapt gives an engine another adapter.
func adapt(e *Engine, adapter Adapter) {
	e.adapter, e.lookup.adapter, e.starts.adapter, e.endings.adapter = adapter, adapter, adapter, adapter
	e.logs.adapter, e.remains.adapter, e.volumes.adapter = adapter, adapter, adapter
	e.departures.adapter, e.arrivals.adapter = adapter, adapter
}

// TestAway checks that nobody concludes from an unavailable engine that a container never ran, has ended,
// or is removed.
func TestAway(t *testing.T) {
	e, id := awayEngine(t), strings.Repeat("a", 64)
	gone := checkpoint.Identity{PID: 1 << 22, StartTicks: 1}
	if err := save(e.records.departurePath(id), departureRecord{First: gone}); err != nil {
		t.Fatal(err)
	}
	outcome, arrived := e.Arrived(t.Context(), id)
	_, inspected := e.Inspect(t.Context(), id)
	_, listed := e.List(t.Context())
	for what, err := range map[string]error{
		"Arrived": arrived, "Inspect": inspected, "List": listed,
		"Resume": e.Resume(t.Context(), id), "Destroy": e.Destroy(t.Context(), id, nil),
		"Throttle": e.Throttle(t.Context(), id, 0),
	} {
		if !errors.Is(err, engine.ErrAway) || errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%s: %v, want that the engine is not there", what, err)
		}
	}
	if outcome != "" {
		t.Errorf("outcome %s", outcome)
	}
	if !durable.Exists(e.records.departurePath(id)) {
		t.Error("what the engine was to do when the container ends is forgotten")
	}
	if err := e.Discard(t.Context(), id); err != nil {
		t.Errorf("nothing has arrived: %v", err)
	}
}

// TestResumedWithoutEngine checks that a container continues whether or not its engine is available, and
// that the engine is told when it is. Meanwhile the container's record says that nobody may freeze it
// again.
func TestResumedWithoutEngine(t *testing.T) {
	e, id := awayEngine(t), strings.Repeat("a", 64)
	gone := checkpoint.Identity{PID: 1 << 22, StartTicks: 1}
	if err := errors.Join(e.ResumeProcesses(t.Context(), id),
		save(e.records.departurePath(id), departureRecord{First: gone}),
		e.ResumeProcesses(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	var was departureRecord
	if err := durable.Load(e.records.departurePath(id), &was); err != nil || !was.Resumed {
		t.Fatalf("%+v, %v", was, err)
	}
	if err := e.Resume(t.Context(), id); !errors.Is(err, engine.ErrAway) ||
		!durable.Exists(e.records.departurePath(id)) {
		t.Errorf("%v: its engine is to have it back", err)
	}
}
