package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// TestStands checks what a policy requires for a container that has ended.
func TestStands(t *testing.T) {
	long, short, unseen := record{State: engine.Exited, RanSeconds: 60},
		record{State: engine.Exited, RanSeconds: 1}, record{State: engine.Running}
	for _, c := range []struct {
		name     string
		policy   string
		code     int
		ran      record
		was      restartRecord
		why      string // "": it is due
		failures int
		unheld   bool
	}{
		{name: "no policy", ran: long, why: "no restart policy"},
		{name: "no policy, power lost", code: exitUnknown, ran: unseen, why: "its node went down"},
		{name: "always", policy: "always", ran: long},
		{name: "power lost", policy: "always", code: exitUnknown, ran: unseen,
			was: restartRecord{Failures: 7, Boot: "before"}},
		{name: "monitor killed", policy: "always", code: exitUnknown, ran: unseen,
			was: restartRecord{Failures: 7, Boot: "now"}, failures: 7},
		{name: "power lost, on failure", policy: "on-failure", code: exitUnknown, ran: unseen},
		{name: "stopped", policy: "always", ran: long, was: restartRecord{Stopped: "now"}, why: "stopped"},
		{name: "stopped before the boot", policy: "always", ran: long, was: restartRecord{Stopped: "before"}},
		{name: "unless it was stopped", policy: "unless-stopped", ran: long,
			was: restartRecord{Stopped: "before"}, why: "stopped"},
		{name: "unless-stopped", policy: "unless-stopped", ran: long},
		{name: "no failure", policy: "on-failure", ran: long, why: "without an error"},
		{name: "first failure", policy: "on-failure:2", code: 1, ran: short},
		{name: "second failure", policy: "on-failure:2", code: 1, ran: short, was: restartRecord{Failures: 1},
			failures: 1},
		{name: "too many failures", policy: "on-failure:2", code: 1, ran: short,
			was: restartRecord{Failures: 2}, failures: 2, why: "after 2 restarts"},
		{name: "and a boot", policy: "on-failure:2", code: 1, ran: short,
			was: restartRecord{Failures: 2, Boot: "before"}, failures: 2, why: "after 2"},
		{name: "failed after long", policy: "on-failure:2", code: 1, ran: long,
			was: restartRecord{Failures: 2}},
		{name: "not confirmed", policy: "always", ran: long, was: restartRecord{Holder: "nobody"},
			why: "has not confirmed", unheld: true},
		{name: "another state", policy: "always", ran: long,
			was: restartRecord{Holder: "two", Stopped: "now"}, why: "was restored", unheld: true},
	} {
		ctr := engine.Container{State: engine.Exited, ExitCode: c.code}
		ctr.Definition.Restart = c.policy
		if c.was.Holder = strings.TrimPrefix(c.was.Holder, "nobody"); !c.unheld {
			c.was.Holder = "one"
		}
		got, err := stands(ctr, c.ran, c.was, "now", "one")
		if err != nil || got.Due != (c.why == "") || !strings.Contains(got.Why, c.why) ||
			got.Failures != c.failures || got.Unheld != c.unheld {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func noPreparation(context.Context, engine.Definition) error { return nil }

// ended waits for the end of a container.
func (n *testNode) ended(id string) engine.Container {
	n.t.Helper()
	if _, err := n.Wait(n.t.Context(), id); err != nil {
		n.t.Fatal(err)
	}
	return n.state(id)
}

// stands requires that a container that has ended is due, or is not due for this reason.
func (n *testNode) stands(id, why string) Standing {
	n.t.Helper()
	s, err := n.Standing(n.ended(id))
	if err != nil || s.Due != (why == "") || !strings.Contains(s.Why, why) {
		n.t.Fatalf("it stands at %+v, %v; want %q", s, err, why)
	}
	return s
}

// TestRestarts lets a real container end, and checks its standing and who may start it.
func TestRestarts(t *testing.T) {
	n := newTestNode(t)
	wanted := definition(t, "sh", "-c", "exit 3")
	wanted.Restart = "on-failure:1"
	d := n.start(wanted)
	if ids, err := n.Restartable(); err != nil || len(ids) != 1 || ids[0] != d.ID {
		t.Errorf("with a policy: %v, %v", ids, err)
	}
	n.stands(d.ID, "")
	must(t, n.Restart(t.Context(), d.ID, noPreparation))
	n.stands(d.ID, "failed again after 1")
	if err := n.Restart(t.Context(), d.ID, noPreparation); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("it is started again although it is not due: %v", err)
	}
	must(t, n.Start(t.Context(), d.ID)) // somebody starts it: it has not failed yet
	n.stands(d.ID, "")
	must(t, n.Stop(t.Context(), d.ID, 0))
	n.stands(d.ID, "it was stopped")
	must(t, n.Start(t.Context(), d.ID))
	n.stands(d.ID, "")
}

// TestRestartsInAnotherState checks that with a restored or copied state, all containers are reported so
// from the first moment, and that the stop of a container is not forgotten meanwhile.
func TestRestartsInAnotherState(t *testing.T) {
	n := newTestNode(t)
	d := definition(t, "true")
	d.Restart = "always"
	n.start(d)
	n.stands(d.ID, "")
	must(t, n.Stop(t.Context(), d.ID, 0))
	n.config.State = "two"
	n = n.reopen()
	if s := n.stands(d.ID, "was restored"); !s.Unheld {
		t.Errorf("it stands at %+v", s)
	}
	if err := n.Restart(t.Context(), d.ID, noPreparation); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("it is started in another state: %v", err)
	}
	must(t, n.Stop(t.Context(), d.ID, 0))
	n.stands(d.ID, "was restored")
	n.config.State = "one"
	n = n.reopen()
	n.stands(d.ID, "it was stopped")
	n.config.State = "two"
	n = n.reopen()
	must(t, n.Start(t.Context(), d.ID)) // the user knows that this node has it
	n.stands(d.ID, "")
}

// TestRestartsAfterAMove checks that the target has the container once its source has confirmed that, and
// not before. A boot does not change that, and the source's own copy does not start again.
func TestRestartsAfterAMove(t *testing.T) {
	a, b := newTestNode(t), newTestNode(t)
	d := definition(t, "sh", "-c", "while :; do sleep 0.05; done")
	d.Restart = "always"
	a.start(d)
	move(t, a, b, d.ID)
	if _, err := b.Arrived(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	b = b.boot()
	if s := b.stands(d.ID, "has not confirmed"); !s.Unheld {
		t.Errorf("it stands at %+v", s)
	}
	must(t, b.Stop(t.Context(), d.ID, 0))
	must(t, b.Settled(t.Context(), d.ID))
	b.stands(d.ID, "it was stopped")
	must(t, b.Start(t.Context(), d.ID))
	b = b.boot()
	b.stands(d.ID, "")
	must(t, b.Restart(t.Context(), d.ID, noPreparation))
	must(t, b.Settled(t.Context(), newID(t))) // removed meanwhile
}

// TestFailedStart checks that a container whose start fails, at any point, is as it was before, and that
// each failure counts. A refused start is no failure of the container.
func TestFailedStart(t *testing.T) {
	n := newTestNode(t)
	broken := shortDir(t) + "/runc"
	script := fmt.Sprintf("#!/bin/sh\nfor a; do [ \"$a\" = start ] && [ -e %[1]s.broken ] && exit 1; "+
		"done\nexec %[2]s \"$@\"\n", broken, n.processes.runc.path)
	must(t, os.WriteFile(broken, []byte(script), 0o700))
	n.config.Runc = broken
	n = n.reopen()
	d := definition(t, "sh", "-c", "exit 3")
	d.Restart = "on-failure"
	n.start(d)
	place := n.paths.of(d.ID)
	n.ended(d.ID)
	var ran record
	must(t, durable.Load(place.record(), &ran))
	if ran.RanSeconds <= 0 || ran.RanSeconds > 60 {
		t.Errorf("it ran for %f s", ran.RanSeconds)
	}
	ran.RanSeconds = 3600 // as if it had run that long
	must(t, durable.Save(place.record(), ran))
	must(t, os.WriteFile(broken+".broken", nil, 0o600))
	for failures := range 3 {
		if s := n.stands(d.ID, ""); s.Failures != failures {
			t.Errorf("%d starts have failed: %+v", failures, s)
		}
		if err := n.Restart(t.Context(), d.ID, noPreparation); err == nil {
			t.Fatal("a broken runc starts it")
		}
		if ctr := n.state(d.ID); ctr.State != engine.Exited || ctr.ExitCode != 3 {
			t.Errorf("after a failed start it is %s, %d", ctr.State, ctr.ExitCode)
		}
	}
	refused := errors.New("refused")
	for range 3 {
		if err := n.Restart(t.Context(), d.ID,
			func(context.Context, engine.Definition) error { return refused }); !errors.Is(err, refused) {
			t.Error(err)
		}
	}
	must(t, os.Remove(broken+".broken"))
	must(t, n.Restart(t.Context(), d.ID, noPreparation))
	if s := n.stands(d.ID, ""); s.Failures != 4 {
		t.Errorf("four starts have failed: %+v", s)
	}
}

// TestMonitorKilled checks that a start counts as a failure if the monitor is killed with the container, so
// that it is not repeated for ever without a pause.
func TestMonitorKilled(t *testing.T) {
	n := newTestNode(t)
	d := definition(t, "sleep", "600")
	d.Restart = "always"
	n.start(d)
	for failures := range 2 {
		place := n.paths.of(d.ID)
		must(t, killMonitor(place))
		must(t, sweep(t.Context(), n.processes.runc, place))
		if s := n.stands(d.ID, ""); s.Failures != failures {
			t.Errorf("after %d restarts: %+v", failures, s)
		}
		must(t, n.Restart(t.Context(), d.ID, noPreparation))
	}
}

// slowNode returns a node whose runc makes no container while a file exists.
func slowNode(t *testing.T) (n *testNode, file string) {
	t.Helper()
	n = newTestNode(t)
	slow := shortDir(t) + "/runc"
	script := fmt.Sprintf("#!/bin/sh\nfor a; do [ \"$a\" = create ] && [ -e %[1]s.slow ] && sleep 600; "+
		"done\nexec %[2]s \"$@\"\n", slow, n.processes.runc.path)
	must(t, os.WriteFile(slow, []byte(script), 0o700))
	n.config.Runc = slow
	return n.reopen(), slow + ".slow"
}

// startsSlowly restarts a container, and returns when runc runs and waits for the file's removal.
func (n *testNode) startsSlowly(ctx context.Context, t *testing.T, id, file string) <-chan error {
	t.Helper()
	must(t, os.WriteFile(file, nil, 0o600))
	done := make(chan error, 1)
	go func() { done <- n.Restart(ctx, id, noPreparation) }()
	eventually(t, "runc to be started", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the start has ended before: %v", err)
		default:
		}
		var live liveState
		if durable.Load(n.paths.of(id).runtime(), &live) != nil {
			return false
		}
		left, err := sessionOf(live.Monitor)
		return err == nil && len(left) > 1
	})
	return done
}

// TestStartingDoesNotRun checks that a container that is started after a boot, which its record does not
// show, does not count as running before it runs.
func TestStartingDoesNotRun(t *testing.T) {
	n, file := slowNode(t)
	d := definition(t, "sleep", "600")
	d.Restart = "always"
	n.start(d)
	place := n.paths.of(d.ID)
	must(t, killMonitor(place))
	must(t, sweep(t.Context(), n.processes.runc, place))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := n.startsSlowly(ctx, t, d.ID, file)
	if ctr, err := n.Inspect(t.Context(), d.ID); err != nil || ctr.State != engine.Exited {
		t.Errorf("while it is started it is %s, %v", ctr.State, err)
	}
	cancel()
	<-done
	must(t, os.Remove(file))
	must(t, n.Start(t.Context(), d.ID))
	if ctr, err := n.Inspect(t.Context(), d.ID); err != nil || ctr.State != engine.Running {
		t.Errorf("when it was started it is %s, %v", ctr.State, err)
	}
}

// TestStartIsTimely checks that everything of a broken-off start is ended, and that this is no failure of
// the container.
func TestStartIsTimely(t *testing.T) {
	n, file := slowNode(t)
	d := definition(t, "true")
	d.Restart = "always"
	n.start(d)
	n.ended(d.ID)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := n.startsSlowly(ctx, t, d.ID, file)
	session := monitorOf(t, n, d.ID)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, err := sessionOf(session); err != nil || len(left) > 0 {
		t.Errorf("left is %+v, %v", left, err)
	}
	if s := n.stands(d.ID, ""); s.Failures != 0 {
		t.Errorf("a start that was broken off counts: %+v", s)
	}
	must(t, os.Remove(file))
	must(t, n.Start(t.Context(), d.ID))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
