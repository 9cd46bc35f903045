package oci

import (
	"context"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestIdentity: of the containers that have the label of one that has come only that one is it. An image that is made of it has
// the label too.
func TestIdentity(t *testing.T) {
	e := awayEngine(t)
	first, own, other := strings.Repeat("1a", 32), strings.Repeat("2b", 32), strings.Repeat("3c", 32)
	labels := map[string]string{idLabel: first}
	labelled := func(own string, labels map[string]string) Found {
		return Found{ID: own, Container: engine.Container{Definition: engine.Definition{ID: own, Labels: labels}}}
	}
	if got := e.identity(labelled(own, labels)); got != own {
		t.Errorf("before it has come: %s", got)
	}
	if err := e.remember(first, own); err != nil {
		t.Fatal(err)
	}
	if err := e.Sweep(); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{own: first, other: other} {
		if got := e.identity(labelled(id, labels)); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	for id, want := range map[string]string{first: own, other: other} {
		if got, err := e.ownID(id); err != nil || got != want {
			t.Errorf("%s is the engine's %s (%v), want %s", id, got, err, want)
		}
	}
	if got := e.identity(labelled(own, map[string]string{idLabel: "../" + first})); got != own {
		t.Errorf("label that is no id: %s", got)
	}
}

// TestMadeFor: what an arrival has written down counts, whatever else has the label.
func TestMadeFor(t *testing.T) {
	e := &Engine{}
	if got, err := e.madeFor(t.Context(), "x", arrivalRecord{OwnID: "y"}); got != "y" || err != nil {
		t.Error(got, err)
	}
	id := strings.Repeat("1a", 32)
	one := func(own, name, arrival string, state engine.State) Found {
		d := engine.Definition{Name: name, Labels: map[string]string{idLabel: id}}
		return Found{ID: own, Arrival: arrival, Container: engine.Container{State: state, Definition: d}}
	}
	for what, c := range map[string]struct {
		found Found
		want  string
	}{
		"made":                  {one("own", "web", "", engine.Created), "own"},
		"another's":             {one("own", "web", "", engine.Exited), ""},
		"its start was refused": {one("own", "web", id, engine.Exited), "own"},
		"made, of this arrival": {one("own", "web", id, engine.Created), "own"},
		"of another arrival":    {one("own", "web", "x", engine.Exited), ""},
		"another, cloned of it": {one("own", "web-clone", id, engine.Exited), ""},
	} {
		e := &Engine{adapter: listing{Adapter: away{}, all: []Found{c.found}}}
		if got, err := e.madeFor(t.Context(), id, arrivalRecord{Definition: engine.Definition{Name: "web"}}); got != c.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", what, got, err, c.want)
		}
	}
}

// listing is the adapter of an engine with these containers.
type listing struct {
	Adapter
	all []Found
}

func (l listing) List(context.Context, func(string) bool) ([]Found, error) { return l.all, nil }
