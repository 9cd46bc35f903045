package oci

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// renaming is the adapter of an engine that can rename its containers, by the engine's IDs.
type renaming struct {
	Adapter
	names map[string]string
}

func (r *renaming) Programs() []string { return []string{"some"} }
func (r *renaming) Title() string      { return "Some" }

func (r *renaming) found(engineID string) Container {
	d := engine.Definition{ID: engineID, Name: r.names[engineID]}
	return Container{ID: engineID, Container: engine.Container{Definition: d}}
}

func (r *renaming) Find(_ context.Context, ref string) (Container, error) {
	for engineID, name := range r.names {
		if engineID == ref || name == ref {
			return r.found(engineID), nil
		}
	}
	return Container{}, engine.ErrNotFound
}

func (r *renaming) List(context.Context, func(string) bool) (all []Container, err error) {
	for engineID := range r.names {
		all = append(all, r.found(engineID))
	}
	return all, nil
}

func (r *renaming) Away() error  { return nil }
func (r *renaming) Name() string { return "some" }

func (r *renaming) Mark(_ context.Context, found Container, moved Moved) error {
	return r.rename(found, moved.Name, moved.MarkedName())
}

func (r *renaming) Unmark(_ context.Context, found Container, moved Moved) error {
	return r.rename(found, moved.MarkedName(), moved.Name)
}

func (r *renaming) rename(found Container, from, to string) error {
	if found.name() != from {
		return nil
	}
	for _, name := range r.names {
		if name == to {
			return errors.New("the name is in use")
		}
	}
	r.names[found.ID] = to
	return nil
}

// TestMark checks that a copy can be marked repeatedly, that Godwit still knows it by its name, and that it
// gets its name back unless another container has the name by then or somebody else has renamed the copy.
func TestMark(t *testing.T) {
	id, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for what, c := range map[string]struct {
		meanwhile func(r *renaming)
		want      string
	}{
		"it stays":             {func(*renaming) {}, "web"},
		"its name is taken":    {func(r *renaming) { r.names[other] = "web" }, "web-moved-to-b"},
		"somebody renamed it":  {func(r *renaming) { r.names[id] = "mine" }, "mine"},
		"it has been removed":  {func(r *renaming) { delete(r.names, id) }, ""},
		"it was marked before": {func(r *renaming) { r.names[id] = "web-moved-to-b" }, "web"},
	} {
		t.Run(what, func(t *testing.T) {
			r := &renaming{names: map[string]string{id: "web"}}
			e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, r)
			must(t, err)
			must(t, e.starts.MarkMoved(t.Context(), id))
			if r.names[id] != "web" {
				t.Errorf("a container that does not leave is called %s", r.names[id])
			}
			gone := checkpoint.Identity{PID: 1 << 22, StartTicks: 1}
			record := departureRecord{First: gone, Name: "web", Leave: engine.Leave{Target: "b"}}
			must(t, save(e.records.departurePath(id), record))
			for range 2 {
				must(t, e.starts.MarkMoved(t.Context(), id))
			}
			if r.names[id] != "web-moved-to-b" {
				t.Errorf("the copy is called %s", r.names[id])
			}
			if ctr := e.lookup.describe(r.found(id)); ctr.Definition.Name != "web" {
				t.Errorf("Godwit calls it %s", ctr.Definition.Name)
			}
			c.meanwhile(r)
			for range 2 {
				must(t, e.starts.unmark(t.Context(), id, record.moved()))
			}
			if r.names[id] != c.want {
				t.Errorf("then it is called %q, want %q", r.names[id], c.want)
			}
		})
	}
}

// hesitant is a renaming adapter whose rename does not return until it is released.
type hesitant struct {
	*renaming
	began, let chan struct{}
}

func (h *hesitant) Mark(ctx context.Context, found Container, moved Moved) error {
	close(h.began)
	<-h.let
	return h.renaming.Mark(ctx, found, moved)
}

// TestMarkHoldsNothing checks that a copy is protected although its engine hangs while it marks the copy.
// Only callers that remove the mark wait.
func TestMarkHoldsNothing(t *testing.T) {
	id := strings.Repeat("a", 64)
	h := &hesitant{&renaming{names: map[string]string{id: "web"}}, make(chan struct{}), make(chan struct{})}
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, h)
	must(t, err)
	gone := checkpoint.Identity{PID: 1 << 22, StartTicks: 1}
	record := departureRecord{First: gone, Name: "web", Leave: engine.Leave{Target: "b"}}
	must(t, save(e.records.departurePath(id), record))
	marked := make(chan error)
	go func() { marked <- e.starts.MarkMoved(t.Context(), id) }()
	<-h.began
	must(t, e.Protect(t.Context(), id, nil, nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Resume(ctx, id); !errors.Is(err, context.Canceled) ||
		!durable.Exists(e.records.departurePath(id)) {
		t.Errorf("it is given back while it is marked: %v", err)
	}
	close(h.let)
	must(t, <-marked)
	if r := h.names[id]; r != "web-moved-to-b" {
		t.Errorf("the copy is called %s", r)
	}
}
