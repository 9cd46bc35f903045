package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// noLayers is an image store of an engine that starts nothing.
type noLayers struct{}

func (noLayers) LayerPath(string) (string, error) { return "", errors.New("no layers") }

// restartsNode is an agent whose engine has containers on disk only, and that asks nobody.
type restartsNode struct {
	*restarts
	t *testing.T
}

func newRestartsNode(t *testing.T, members ...string) *restartsNode {
	t.Helper()
	a := newTestAgent(t)
	var err error
	a.embedded, err = embedded.New(embedded.Config{
		StateDir: a.config.StateDir, RunDir: a.config.RunDir, Images: noLayers{}, State: "one",
		Runc: "/bin/false",
	})
	if err != nil {
		t.Fatal(err)
	}
	saved := []identity.Node{}
	for i, name := range members {
		saved = append(saved, identity.Node{Name: name, Number: 10 + i, Address: "192.0.2.1:7443"})
	}
	if err := identity.SaveNodes(a.config.StateDir, saved); err != nil {
		t.Fatal(err)
	}
	if a.peers, err = a.newPeers(); err != nil {
		t.Fatal(err)
	}
	r := newRestarts(a)
	a.restarts = r
	r.members.Reaches = func(string) bool { return true }
	r.members.Presence = func(context.Context, identity.Node, string) (string, error) { return "", nil }
	r.again = func(context.Context, engine.Definition) error { return errors.New("it must not be started") }
	return &restartsNode{r, t}
}

// ended makes a container that has ended, with some failures behind it. What the wall clock said then
// has no meaning.
func (n *restartsNode) ended(number, failures int) engine.Container {
	n.t.Helper()
	id := fmt.Sprintf("%064x", number)
	dir := filepath.Join(n.agent.config.StateDir, "containers", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	for name, content := range map[string]any{
		"definition.json": engine.Definition{ID: id, Name: fmt.Sprintf("c%d", number), Restart: "always"},
		"record.json": map[string]any{
			"state": engine.Exited, "started": time.Now().AddDate(50, 0, 0),
			"finished": time.Now().AddDate(-50, 0, 0), "exit_code": 1,
		},
		"restarts.json": map[string]any{"holder": "one", "failures": failures},
	} {
		data, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	one, err := n.agent.embedded.Inspect(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return one
}

// moving lets a migration of a container be under way.
func (n *restartsNode) moving(container string) *move {
	n.t.Helper()
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	record.State, record.Decision, record.Spec.Mode = migration.Committed, "", migration.Cold
	record.Begun = []migration.StepName{migration.StepRestore}
	machine, _, err := migration.Resume(record)
	if err != nil {
		n.t.Fatal(err)
	}
	m := newMove(n.agent, n.agent.moves.journal(testMigration, engine.Definition{}), machine)
	m.tracker.Spec.Container = container
	n.agent.moves.byID[testMigration] = m
	return m
}

// unread lets there be a journal that cannot be used, of a container; "": it is not known of which.
func (n *restartsNode) unread(container string) {
	n.agent.moves.unread["x"] = unread{spec: migration.Spec{ID: "x", Container: container}}
}

// started waits until a container is not being started any more.
func (n *restartsNode) started(container string) *followed {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		n.mu.Lock()
		f := *n.of(container)
		n.mu.Unlock()
		if !f.starting {
			return &f
		}
		if time.Now().After(deadline) {
			n.t.Fatal("it is still being started")
		}
	}
}

// TestRestartsBackOff lets starts fail. The next ones come later and later, and no wall clock has a say
// in that.
func TestRestartsBackOff(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	n.again = func(context.Context, engine.Definition) error { return errors.New("no room") }
	now := time.Now()
	for failures, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond,
		400 * time.Millisecond} {
		one := n.ended(1, failures)
		if wait := n.follow(t.Context(), one, now); wait != want {
			t.Errorf("after %d failures: in %s, want %s", failures, wait, want)
		}
		now = now.Add(want - time.Millisecond)
		if wait := n.follow(t.Context(), one, now); wait != time.Millisecond ||
			n.started(one.Definition.ID).failed != nil && failures == 0 {
			t.Errorf("after %d failures: started too early, or in %s", failures, wait)
		}
		now = now.Add(time.Millisecond)
		n.follow(t.Context(), one, now)
		if f := n.started(one.Definition.ID); f.failed == nil || !strings.Contains(n.whyNot(one), "no room") {
			t.Errorf("after %d failures: %v, %s", failures, f.failed, n.whyNot(one))
		}
	}
	if wait := n.follow(t.Context(), n.ended(1, 0), now); wait != 800*time.Millisecond {
		t.Errorf("after three starts that the engine does not count: in %s", wait)
	}
	if wait := backoff(1000); wait != time.Minute {
		t.Errorf("after many failures: in %s", wait)
	}
	n.again = func(context.Context, engine.Definition) error { panic("broken") }
	one := n.ended(1, 0)
	n.follow(t.Context(), one, now)
	n.follow(t.Context(), one, now.Add(time.Second))
	if f := n.started(one.Definition.ID); f.failed == nil || f.seen {
		t.Errorf("after a panic: %+v", f)
	}
}

// TestRestartsWhileBusy: what passes by itself puts the next start off by no more than a moment.
func TestRestartsWhileBusy(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	one := n.ended(1, 0)
	for _, busy := range []error{engine.ErrBusy, network.ErrHeld} {
		n.again = func(context.Context, engine.Definition) error { return fmt.Errorf("volume: %w", busy) }
		for range 3 {
			began := time.Now()
			n.follow(t.Context(), one, began)
			n.follow(t.Context(), one, began.Add(time.Hour))
			f := n.started(one.Definition.ID)
			if !errors.Is(f.failed, busy) || f.refused != 0 || f.due.IsZero() ||
				f.due.After(time.Now().Add(restartEvery)) {
				t.Errorf("after %v: %+v", busy, f)
			}
		}
	}
}

// TestRestartsAtOnce has many containers due: some are started at once, and one that takes long keeps
// the others from nothing but its own place.
func TestRestartsAtOnce(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	var mu sync.Mutex
	running, most, done := 0, 0, map[string]bool{}
	stuck := make(chan struct{})
	n.again = func(_ context.Context, d engine.Definition) error {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		if d.Name == "c0" {
			<-stuck
		}
		mu.Lock()
		running--
		done[d.ID] = true
		mu.Unlock()
		return nil
	}
	var all []engine.Container
	for number := range 3 * restartsAtOnce {
		all = append(all, n.ended(number, 0))
	}
	began := time.Now()
	for deadline := began.Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		for _, one := range all {
			mu.Lock()
			started := done[one.Definition.ID]
			mu.Unlock()
			if !started {
				n.follow(t.Context(), one, began)
				n.follow(t.Context(), one, began.Add(time.Second))
			}
		}
		mu.Lock()
		enough := len(done) == len(all)-1
		mu.Unlock()
		if enough || time.Now().After(deadline) {
			break
		}
	}
	close(stuck)
	n.started(all[0].Definition.ID)
	if most > restartsAtOnce || len(done) != len(all) {
		t.Errorf("%d at once, %d of %d started", most, len(done), len(all))
	}
}

// TestRestartsWhileMoving: nothing is started as long as a migration of it is known, or may be. What
// was seen before counts no more.
func TestRestartsWhileMoving(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t, "c")
	n.members.Reaches = func(string) bool { return false }
	one := n.ended(1, 0)
	id := one.Definition.ID
	if why := n.whyNot(one); !strings.Contains(why, "may be on c, which cannot be reached") {
		t.Error(why)
	}
	n.ran(id)
	if why := n.whyNot(one); !strings.Contains(why, "in a moment") {
		t.Error(why)
	}
	m := n.moving(id)
	if why := n.whyNot(one); !strings.Contains(why, "is being migrated") {
		t.Error(why)
	}
	n.follow(t.Context(), one, time.Now())
	if err := n.agent.startAgain(t.Context(), one.Definition, false,
		n.agent.embedded.Restart); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("started with its migration under way: %v", err)
	}
	if _, err := n.look(t.Context()); err != nil || n.hasSeen(id) {
		t.Errorf("seen %t, %v", n.hasSeen(id), err)
	}
	m.remember()
	n.unread(id)
	if why := n.whyNot(one); !strings.Contains(why, "journal of migration x cannot be used") ||
		!strings.Contains(why, "start --force c1") {
		t.Error(why)
	}
	if err := n.agent.mayStart(one.Definition, true); err != nil {
		t.Errorf("a user who knows better may not start it: %v", err)
	}
	n.unread("") // whose is not known
	if why := n.whyNot(one); !strings.Contains(why, "may be on c") {
		t.Error(why)
	}
	if f := n.started(id); f.failed != nil {
		t.Errorf("it was started: %v", f.failed)
	}
}

// TestHolding tells others what this node has of a container.
func TestHolding(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	id := n.ended(1, 0).Definition.ID
	says := func(container, want string) {
		t.Helper()
		state, err := n.agent.holding(t.Context(), container)
		if err != nil || !strings.Contains(state, want) || (state == "") != (want == "") {
			t.Errorf("%q, %v; want %q", state, err, want)
		}
	}
	says(id, "exited")
	absent := strings.Repeat("f", 64)
	says(absent, "")
	m := n.moving(absent)
	says(absent, "under way")
	m.remember()
	n.unread("") // it is not known of which container
	says(absent, "")
	says(id, "exited")
	n.unread(absent)
	says(id, "exited")
	if state, err := n.agent.holding(t.Context(), absent); err == nil ||
		!strings.Contains(err.Error(), "migration x cannot be used") {
		t.Errorf("the container of a journal that cannot be used is %q, %v", state, err)
	}
	n.unread(id)
	says(id, "exited")
	delete(n.agent.moves.unread, "x")
	if err := os.WriteFile(filepath.Join(n.agent.config.StateDir, "containers", id, "record.json"),
		[]byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if state, err := n.agent.holding(t.Context(), id); err == nil {
		t.Errorf("a damaged one is %q", state)
	}
	if ids, err := n.agent.embedded.Restartable(); err != nil || !slices.Contains(ids, id) {
		t.Errorf("%v, %v", ids, err)
	}
}

// TestHoldingUndone: an arrival that never runs keeps the container from starting nowhere, also if
// its removal does not come to an end. What has been taken back from here, or runs, does.
func TestHoldingUndone(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	id := n.ended(1, 0).Definition.ID
	arrival := filepath.Join(n.agent.config.StateDir, "containers", id, "arrival.json")
	if err := os.WriteFile(arrival, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := n.moving(id)
	record := m.record()
	record.Spec.Side, record.Spec.Mode, record.Spec.Container = migration.Target, migration.Cold, id
	holds := func(when, want string) {
		t.Helper()
		machine, _, err := migration.Resume(record)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		m.machine = machine
		state, err := n.agent.holding(t.Context(), id)
		if err != nil || !strings.Contains(state, want) || (state == "") != (want == "") {
			t.Errorf("%s: %q, %v; want %q", when, state, err, want)
		}
	}
	record.State, record.Decision, record.Begun = migration.Committed, "",
		[]migration.StepName{migration.StepArrive, migration.StepRestore}
	holds("it may run", "under way")
	record.State, record.Decision, record.Begun = migration.Undoing, migration.NeverRan,
		[]migration.StepName{migration.StepArrive}
	holds("it never runs", "")
	record.Overruled, record.Begun = true, []migration.StepName{migration.StepArrive, migration.StepRestore}
	holds("what runs is being taken back", "under way")
	record.Overruled = false
	if err := os.Remove(arrival); err != nil {
		t.Fatal(err)
	}
	holds("it is no arrival", "it is exited")
}

// TestElsewhereUnsaid: what keeps a container from starting is told with the way out: there is none
// past a node that has it, and a user may decide about a node that cannot say, such as one with an
// older version.
func TestElsewhereUnsaid(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t, "c", "d")
	one := n.ended(1, 0)
	answers := map[string]string{}
	n.members.Presence = func(_ context.Context, node identity.Node, _ string) (string, error) {
		if node.Name == "d" {
			return "", errors.New("it runs an older version of godwit")
		}
		return answers[node.Name], nil
	}
	n.follow(t.Context(), one, time.Now())
	n.follow(t.Context(), one, time.Now().Add(time.Second))
	if f := n.started(one.Definition.ID); !errors.Is(f.failed, location.ErrElsewhere) ||
		errors.Is(f.failed, location.ErrThere) || f.refused != 0 {
		t.Errorf("it was tried: %+v", f)
	}
	if why := n.whyNot(one); !strings.Contains(why, "node d cannot say") ||
		!strings.Contains(why, "start --force c1") {
		t.Error(why)
	}
	if err := n.members.Elsewhere(t.Context(), one.Definition, true); err != nil {
		t.Errorf("a user who knows better: %v", err)
	}
	answers["c"] = "it is running"
	if err := n.members.Elsewhere(t.Context(), one.Definition, true); !errors.Is(err, location.ErrThere) {
		t.Errorf("c has it: %v", err)
	}
	n.follow(t.Context(), one, time.Now().Add(time.Minute))
	if n.started(one.Definition.ID); strings.Contains(n.whyNot(one), "--force") {
		t.Error(n.whyNot(one))
	}
}

// TestForceOverAnswer: a user may overrule a node that cannot be asked, but none that answers.
func TestForceOverAnswer(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t, "c", "d")
	n.agent.engines = engine.NewSet(n.agent.embedded)
	id := n.ended(1, 0).Definition.ID
	for code, overruled := range map[codes.Code]bool{
		codes.Unavailable: true, codes.DeadlineExceeded: true, codes.Canceled: true,
		codes.Unimplemented: true,
		codes.Unknown:       false, codes.FailedPrecondition: false, codes.PermissionDenied: false,
	} {
		n.members.Presence = func(_ context.Context, node identity.Node, _ string) (string, error) {
			if node.Name == "c" {
				return "", status.Error(code, "broken")
			}
			return "", nil
		}
		err := n.agent.start(t.Context(), id, false)
		if !errors.Is(err, location.ErrElsewhere) ||
			strings.Contains(err.Error(), "start --force") != overruled {
			t.Errorf("%s: %v", code, err)
		}
		if err := n.agent.start(t.Context(), id, true); err == nil ||
			errors.Is(err, location.ErrElsewhere) == overruled {
			t.Errorf("%s, with force: %v", code, err)
		}
	}
}

// TestUndoneElsewhere: v0.1.0 undoes a migration without the note that a reboot does not lose. The
// journal says so, and the note goes.
func TestUndoneElsewhere(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	a := n.agent
	a.engines = engine.NewSet(a.embedded)
	one := n.ended(1, 0)
	id := one.Definition.ID
	m := n.moving(id)
	note, err := json.Marshal(map[string]any{"leave": engine.Leave{Migration: testMigration, Target: "c",
		Mode: "cold"}})
	if err == nil {
		err = os.WriteFile(filepath.Join(a.config.StateDir, "containers", id, "departure.json"), note, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	leaves := func(want bool, when string) {
		t.Helper()
		a.moves.rebuild(t.Context(), a.embedded)
		now, err := a.embedded.Inspect(t.Context(), id)
		if err != nil || (now.Leaving != nil) != want {
			t.Fatalf("%s: %+v, %v", when, now.Leaving, err)
		}
	}
	leaves(true, "under way")
	m.remember()
	leaves(true, "ended at a target")
	record := m.record()
	record.Spec.Side, record.Spec.Container, record.State, record.Begun = migration.Source,
		id, migration.Done, nil
	for _, result := range []migration.Result{migration.Moved, migration.RolledBack} {
		if record.Result = result; result == migration.RolledBack {
			n.unread("")
		}
		if m.machine, _, err = migration.Resume(record); err != nil {
			t.Fatal(err)
		}
		leaves(true, string(result))
	}
	n.unread(id)
	leaves(true, "rolled back, and a journal of it cannot be used")
	if one, err = a.embedded.Inspect(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if why := n.whyNot(one); !strings.Contains(why, "journal of migration x cannot be used") {
		t.Error(why)
	}
	n.unread("")
	if why := n.whyNot(one); !strings.Contains(why, "a migration has moved it away") ||
		!strings.Contains(why, "migrations/x away") {
		t.Error(why)
	}
	if err := a.start(t.Context(), id, true); !errors.Is(err, engine.ErrBusy) ||
		!strings.Contains(err.Error(), "migrations/x away") {
		t.Errorf("it is started: %v", err)
	}
	n.unread(strings.Repeat("f", 64))
	leaves(false, "rolled back")
}
