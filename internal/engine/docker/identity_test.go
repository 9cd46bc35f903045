package docker

import (
	"strings"
	"testing"
)

// TestIdentity: of the containers that have the label of one that has come only that one is it. An image that is made of it has
// the label too.
func TestIdentity(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Socket: "/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	first, own, other := strings.Repeat("1a", 32), strings.Repeat("2b", 32), strings.Repeat("3c", 32)
	labels := map[string]string{idLabel: first}
	if got := e.identity(own, labels); got != own {
		t.Errorf("before it has come: %s", got)
	}
	if err := e.remember(first, own); err != nil {
		t.Fatal(err)
	}
	if err := e.Sweep(); err != nil {
		t.Fatal(err)
	}
	for dockerID, want := range map[string]string{own: first, other: other} {
		if got := e.identity(dockerID, labels); got != want {
			t.Errorf("%s is %s, want %s", dockerID, got, want)
		}
	}
	for id, want := range map[string]string{first: own, other: other} {
		if got, err := e.dockerID(id); err != nil || got != want {
			t.Errorf("%s is Docker's %s (%v), want %s", id, got, err, want)
		}
	}
	if got := e.identity(own, map[string]string{idLabel: "../" + first}); got != own {
		t.Errorf("label that is no id: %s", got)
	}
}

// TestMadeFor: what an arrival has written down counts, whatever else has the label.
func TestMadeFor(t *testing.T) {
	e := &Engine{}
	if got, err := e.madeFor(t.Context(), "x", arrivalRecord{DockerID: "y"}); got != "y" || err != nil {
		t.Error(got, err)
	}
}
