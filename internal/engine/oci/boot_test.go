package oci

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
)

// booted is the adapter of an available engine with one container. It records the calls that change the
// container.
type booted struct {
	away
	found  Container
	fails  error
	starts bool
	did    []string
	mute   error // once: a query for the container is not answered
	gone   bool
}

func (b *booted) Away() error                                  { return nil }
func (b *booted) RestoreDir(engineID string) string            { return engineID }
func (b *booted) StartsAtBoot(Container, json.RawMessage) bool { return b.starts }

func (b *booted) Find(context.Context, string) (Container, error) {
	err := b.mute
	b.mute = nil
	if err == nil && b.gone {
		err = engine.ErrNotFound
	}
	return b.found, err
}

func (b *booted) Gone(engineID string) error {
	b.did = append(b.did, "gone "+engineID[:1])
	return nil
}

func (b *booted) Remove(context.Context, string, RemoveOptions) error {
	b.did = append(b.did, "remove")
	return nil
}

func (b *booted) Restart(_ context.Context, _ Container, policy json.RawMessage) error {
	if policy != nil {
		b.did = append(b.did, "policy "+string(policy))
	}
	return nil
}

func (b *booted) Start(context.Context, string) error {
	b.did = append(b.did, "start")
	return b.fails
}

// TestGivenBack checks that a container that ended with the machine while its engine was not to start it is
// started as the engine would have started it, once, and that a container that ended otherwise stays as it
// is.
func TestGivenBack(t *testing.T) {
	id, boot := strings.Repeat("a", 64), bootID(t)
	first, policy := checkpoint.Identity{PID: 1 << 22, StartTicks: 1}, json.RawMessage(`"always"`)
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
				b := &booted{found: Container{ID: id,
					Container: engine.Container{State: engine.State(c.state)}}, fails: c.fails,
					starts: c.starts}
				e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, b)
				must(t, err)
				again := func() error { return e.Resume(t.Context(), id) }
				must(t, save(e.records.departurePath(id),
					departureRecord{First: first, Restart: policy, Boot: c.boot}))
				if direction == "arrives" {
					must(t, durable.Remove(e.records.departurePath(id)))
					must(t, save(e.records.arrivalPath(id), arrivalRecord{Restart: policy, Boot: c.boot}))
					must(t, e.endings.settle(t.Context(), id))
					if len(b.did) > 0 {
						t.Errorf("while there may be another copy its engine was told %q", b.did)
					}
					again = func() error { return e.Settled(t.Context(), id) }
				}
				b.mute = context.DeadlineExceeded
				if err := again(); !errors.Is(err, context.DeadlineExceeded) || len(b.did) > 0 {
					t.Errorf("%v from an engine that does not answer, which was told %q", err, b.did)
				}
				if err := again(); !errors.Is(err, c.fails) {
					t.Errorf("%v, want %v", err, c.fails)
				}
				must(t, again()) // it is tried once, and a failure is not fatal
				if slices.Contains(b.did, "start") != c.started ||
					!slices.Contains(b.did, `policy "always"`) || len(b.did) > 2 {
					t.Errorf("it was told %q", b.did)
				}
				if durable.Exists(e.records.departurePath(id)) || durable.Exists(e.records.arrivalPath(id)) ||
					durable.Exists(e.records.camePath(id)) {
					t.Error("the move is still recorded")
				}
			})
		}
	}
}

// TestStartNotAnswered checks that a start that the engine has not answered is tried again.
func TestStartNotAnswered(t *testing.T) {
	id := strings.Repeat("a", 64)
	b := &stopped{booted{found: Container{ID: id, Container: engine.Container{State: engine.Exited}},
		fails: context.Canceled, starts: true}}
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, b)
	must(t, err)
	must(t, save(e.records.camePath(id), cameRecord{EngineID: id,
		withheld: withheld{Restart: json.RawMessage(`1`), Boot: "another"}}))
	for range 2 {
		if err := e.Settled(t.Context(), id); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it is not answered", err)
		}
	}
	b.fails = nil
	must(t, e.Settled(t.Context(), id))
	if did := strings.Join(b.did, ", "); did != strings.TrimSuffix(strings.Repeat("policy 1, start, ", 3),
		", ") || durable.Exists(e.records.camePath(id)) {
		t.Errorf("it was told %q", did)
	}
}

// stopped does not answer any more after a failed start.
type stopped struct{ booted }

func (s *stopped) Start(ctx context.Context, engineID string) error {
	s.mute = s.fails
	return s.booted.Start(ctx, engineID)
}

// TestSettledRemoved checks that nothing is left of an arrived container that was removed while there was
// another copy.
func TestSettledRemoved(t *testing.T) {
	id, engineID := strings.Repeat("a", 64), strings.Repeat("b", 64)
	b := &booted{gone: true}
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, b)
	must(t, err)
	must(t, save(e.records.camePath(id), cameRecord{EngineID: engineID}))
	must(t, e.Settled(t.Context(), id))
	if did := strings.Join(b.did, ", "); did != "gone b" || durable.Exists(e.records.camePath(id)) {
		t.Errorf("it was told %q", did)
	}
}

// asked is the adapter of an engine that knows who has ended a container.
type asked struct {
	booted
	restarts bool
	fails    error
	ends     bool // the container ends when its engine is told its policy
}

func (a *asked) Restart(ctx context.Context, found Container, policy json.RawMessage) error {
	if a.ends {
		a.found.Container.State = engine.Exited
	}
	return a.booted.Restart(ctx, found, policy)
}

func (a *asked) Restarts(context.Context, Container, json.RawMessage, time.Time) (bool, error) {
	return a.restarts, a.fails
}

// TestEndedWhileItLeaves checks that a container that ended by itself is started as its engine would have
// started it, and that a container that somebody ended is not. If that is unknown, the record stays.
func TestEndedWhileItLeaves(t *testing.T) {
	id, away := strings.Repeat("a", 64), errors.New("it does not answer")
	for name, c := range map[string]struct {
		state    engine.State
		restarts bool
		fails    error
		ends     bool
		did      string
	}{
		"by itself":     {engine.Exited, true, nil, false, `policy "always", start`},
		"by somebody":   {engine.Exited, false, nil, false, `policy "always"`},
		"nobody knows":  {engine.Exited, true, away, false, ""},
		"it has not":    {engine.Running, true, nil, false, `policy "always"`},
		"meanwhile":     {engine.Running, true, nil, true, `policy "always", start`},
		"never started": {engine.Created, true, nil, false, `policy "always"`},
	} {
		a := &asked{
			booted:   booted{found: Container{ID: id, Container: engine.Container{State: c.state}}},
			restarts: c.restarts, fails: c.fails, ends: c.ends,
		}
		e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, a)
		must(t, err)
		must(t, save(e.records.departurePath(id), departureRecord{First: checkpoint.Identity{PID: 1 << 22},
			Restart: json.RawMessage(`"always"`), Boot: bootID(t)}))
		if err := e.Resume(t.Context(), id); !errors.Is(err, c.fails) {
			t.Errorf("%s: %v, want %v", name, err, c.fails)
		}
		if did := strings.Join(a.did, ", "); did != c.did ||
			durable.Exists(e.records.departurePath(id)) != (c.fails != nil) {
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
