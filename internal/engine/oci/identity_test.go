package oci

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/patience"
)

// TestIdentity checks that only the arrived container itself has its identity, although others have its
// label: an image made of it has the label, too.
func TestIdentity(t *testing.T) {
	e := awayEngine(t)
	first, engineID, other := strings.Repeat("1a", 32), strings.Repeat("2b", 32), strings.Repeat("3c", 32)
	labels := map[string]string{idLabel: first}
	labelled := func(engineID string, labels map[string]string) Container {
		return Container{ID: engineID,
			Container: engine.Container{Definition: engine.Definition{ID: engineID, Labels: labels}}}
	}
	if got := e.lookup.identity(labelled(engineID, labels)); got != engineID {
		t.Errorf("before it has come: %s", got)
	}
	if err := e.records.remember(first, engineID); err != nil {
		t.Fatal(err)
	}
	if err := e.Sweep(); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{engineID: first, other: other} {
		if got := e.lookup.identity(labelled(id, labels)); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	for id, want := range map[string]string{first: engineID, other: other} {
		if got, err := e.lookup.engineID(id); err != nil || got != want {
			t.Errorf("%s is the engine's %s (%v), want %s", id, got, err, want)
		}
	}
	unusable := map[string]string{idLabel: "../" + first}
	if got := e.lookup.identity(labelled(engineID, unusable)); got != engineID {
		t.Errorf("label that is no id: %s", got)
	}
}

// TestMadeFor checks that the record of an arrival counts, whatever else has the label.
func TestMadeFor(t *testing.T) {
	known := arrivalRecord{EngineID: "y"}
	if got, err := new(lookup).madeFor(t.Context(), "x", known); got != "y" || err != nil {
		t.Error(got, err)
	}
	id := strings.Repeat("1a", 32)
	one := func(engineID, name, arrival string, state engine.State) Container {
		d := engine.Definition{Name: name, Labels: map[string]string{idLabel: id}}
		return Container{ID: engineID, Arrival: arrival,
			Container: engine.Container{State: state, Definition: d}}
	}
	for what, c := range map[string]struct {
		found Container
		want  string
	}{
		"made":                  {one("own", "web", "", engine.Created), "own"},
		"another's":             {one("own", "web", "", engine.Exited), ""},
		"its start was refused": {one("own", "web", id, engine.Exited), "own"},
		"made, of this arrival": {one("own", "web", id, engine.Created), "own"},
		"of another arrival":    {one("own", "web", "x", engine.Exited), ""},
		"another, cloned of it": {one("own", "web-clone", id, engine.Exited), ""},
	} {
		e := &lookup{adapter: listing{Adapter: away{}, all: []Container{c.found}}}
		if got, err := e.madeFor(t.Context(), id,
			arrivalRecord{Definition: engine.Definition{Name: "web"}}); got != c.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", what, got, err, c.want)
		}
	}
}

// TestMadeLate checks that an undone arrival waits for a container that its engine may still be making, but
// not if the engine has reported a failure, nor after a reboot.
func TestMadeLate(t *testing.T) {
	limit := makingLimit
	t.Cleanup(func() { makingLimit = limit })
	id, boot := strings.Repeat("1a", 32), bootID(t)
	d := engine.Definition{Name: "web", Labels: map[string]string{idLabel: id}}
	made := Container{ID: "own", Container: engine.Container{State: engine.Created, Definition: d}}
	for what, c := range map[string]struct {
		was   arrivalRecord
		limit patience.Limit
		looks int // queries after which the engine has made it
		want  string
		asked int // expected queries; 0: as many as time allows
		fails bool
	}{
		"made meanwhile": {arrivalRecord{Boot: boot, Began: time.Now()},
			patience.Limit{Still: time.Minute, Most: time.Minute}, 2, "own", 3, false},
		"never made": {arrivalRecord{Boot: boot, Began: time.Now()},
			patience.Limit{Still: 1, Most: time.Minute}, 9, "", 0, false},
		"engine stays busy": {arrivalRecord{Boot: boot, Began: time.Now()},
			patience.Limit{Still: time.Second, Most: 1}, 9, "", 0, true},
		"denied":        {arrivalRecord{Boot: boot, Began: time.Now(), Unmade: true}, limit, 9, "", 1, false},
		"before a boot": {arrivalRecord{Boot: "another", Began: time.Now()}, limit, 9, "", 1, false},
		"long ago": {arrivalRecord{Boot: boot, Began: time.Now().Add(-time.Hour)}, limit, 9, "", 1,
			false},
	} {
		asked := 0
		makingLimit, c.was.Definition = c.limit, d
		e := &lookup{adapter: making{Adapter: away{}, list: func() []Container {
			if asked++; asked > c.looks {
				return []Container{made}
			}
			return nil
		}}}
		if got, err := e.madeLate(t.Context(), id, c.was); got != c.want || (err != nil) != c.fails ||
			c.asked != 0 && asked != c.asked {
			t.Errorf("%s: %q, %v after %d questions, want %q after %d", what, got, err, asked, c.want,
				c.asked)
		}
	}
}

// making is the adapter of an engine that is making a container.
type making struct {
	Adapter
	list func() []Container
}

func (m making) List(context.Context, func(string) bool) ([]Container, error) { return m.list(), nil }

// listing is the adapter of an engine with these containers.
type listing struct {
	Adapter
	all []Container
}

func (l listing) List(context.Context, func(string) bool) ([]Container, error) { return l.all, nil }
