package oci

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/engine/records"
	"github.com/godwit/godwit/internal/kernel"
)

// booted is the adapter of an engine that is there, with one container, and notes what it is asked to do.
type booted struct {
	away
	found  Found
	fails  error
	starts bool
	did    []string
}

func (b *booted) Away() error                                 { return nil }
func (b *booted) Find(context.Context, string) (Found, error) { return b.found, nil }
func (b *booted) Place(own string) string                     { return own }
func (b *booted) StartsAtBoot(Found, json.RawMessage) bool    { return b.starts }

func (b *booted) Restart(_ context.Context, _ Found, policy json.RawMessage) error {
	b.did = append(b.did, "policy "+string(policy))
	return nil
}

func (b *booted) Start(context.Context, string) error {
	b.did = append(b.did, "start")
	return b.fails
}

// TestStartAgain: what ended with the machine while its engine was not to start it is started as the engine would have, once; what ended
// otherwise stays as it is.
func TestStartAgain(t *testing.T) {
	id, boot := strings.Repeat("a", 64), bootID(t)
	first, policy := moving.Identity{PID: 1 << 22, StartTicks: 1}, json.RawMessage(`"always"`)
	refused := errors.New("port is taken")
	for name, c := range map[string]struct {
		boot, state string
		starts      bool
		fails       error
		started     bool
	}{
		"power lost":     {"another", "exited", true, nil, true},
		"cannot start":   {"another", "exited", true, refused, true},
		"same boot":      {boot, "exited", true, nil, false},
		"unknown boot":   {"", "exited", true, nil, false},
		"no such policy": {"another", "exited", false, nil, false},
		"runs":           {"another", "running", true, nil, false},
	} {
		for _, direction := range []string{"leaves", "arrives"} {
			t.Run(name+" "+direction, func(t *testing.T) {
				b := &booted{found: Found{ID: id, Container: engine.Container{State: engine.State(c.state)}}, fails: c.fails, starts: c.starts}
				e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, b)
				must(t, err)
				again := func() error { return e.Thaw(t.Context(), id) }
				must(t, save(e.departurePath(id), departureRecord{First: first, Restart: policy, Boot: c.boot}))
				if direction == "arrives" {
					must(t, records.Remove(e.departurePath(id)))
					must(t, save(e.arrivalPath(id), arrivalRecord{Restart: policy, Boot: c.boot}))
					must(t, e.settle(t.Context(), id))
					if slices.Contains(b.did, "start") {
						t.Error("it was started while there may be another copy")
					}
					again = func() error { return e.StartAgain(t.Context(), id) }
				}
				if err := again(); !errors.Is(err, c.fails) {
					t.Errorf("%v, want %v", err, c.fails)
				}
				must(t, again()) // it is tried once, and hinders nothing
				if slices.Contains(b.did, "start") != c.started || !slices.Contains(b.did, `policy "always"`) || len(b.did) > 2 {
					t.Errorf("it was told %q", b.did)
				}
				if records.Exists(e.departurePath(id)) || records.Exists(e.arrivalPath(id)) || records.Exists(e.endedPath(id)) {
					t.Error("the move is still recorded")
				}
			})
		}
	}
}

// asked is one whose engine tells who has ended a container.
type asked struct {
	booted
	restarts bool
	fails    error
}

func (a *asked) Restarts(context.Context, Found, json.RawMessage, time.Time) (bool, error) {
	return a.restarts, a.fails
}

// TestEndedWhileItLeaves: what has ended by itself is started as its engine would have, what somebody has ended is not; of what is not known
// the record stays.
func TestEndedWhileItLeaves(t *testing.T) {
	id, away := strings.Repeat("a", 64), errors.New("it does not answer")
	for name, c := range map[string]struct {
		state    engine.State
		restarts bool
		fails    error
		did      string
	}{
		"by itself":     {engine.Exited, true, nil, `policy "always", start`},
		"by somebody":   {engine.Exited, false, nil, `policy "always"`},
		"nobody knows":  {engine.Exited, true, away, ""},
		"it has not":    {engine.Running, true, nil, `policy "always"`},
		"never started": {engine.Created, true, nil, `policy "always"`},
	} {
		a := &asked{booted: booted{found: Found{ID: id, Container: engine.Container{State: c.state}}}, restarts: c.restarts, fails: c.fails}
		e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, a)
		must(t, err)
		must(t, save(e.departurePath(id), departureRecord{First: moving.Identity{PID: 1 << 22}, Restart: json.RawMessage(`"always"`), Boot: bootID(t)}))
		if err := e.Thaw(t.Context(), id); !errors.Is(err, c.fails) {
			t.Errorf("%s: %v, want %v", name, err, c.fails)
		}
		if did := strings.Join(a.did, ", "); did != c.did || records.Exists(e.departurePath(id)) != (c.fails != nil) {
			t.Errorf("%s: it was told %q", name, did)
		}
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	boot, err := kernel.BootID()
	must(t, err)
	return boot
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
