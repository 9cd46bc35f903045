package restart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// noLayers is an image store of an engine that starts nothing.
type noLayers struct{}

func (noLayers) LayerPath(string) (string, error) { return "", errors.New("no layers") }

// node is one whose engine has containers on disk only, and that asks nobody.
type node struct {
	*Restarts
	t        *testing.T
	state    string // directory
	embedded *embedded.Engine
	asked    *moves
}

// moves are migrations: at most one of a container that is under way, and one whose journal cannot be used.
type moves struct {
	moving string // container
	never  bool   // it never runs here
	unread *string
}

func (m *moves) Busy(container string) error {
	if m.moving != container {
		return nil
	}
	return fmt.Errorf("%w: container %s is being migrated", engine.ErrBusy, container)
}

func (m *moves) Of(container string) (id string, neverRuns bool) {
	if m.moving != container {
		return "", false
	}
	return "m", m.never
}

func (m *moves) UnreadAmong(containers ...string) string {
	if m.unread != nil && slices.Contains(containers, *m.unread) {
		return "x"
	}
	return ""
}

func (m *moves) Unusable(engine.Container) string { return "; move the journal away" }

func newNode(t *testing.T, members ...string) *node {
	t.Helper()
	n := &node{t: t, state: t.TempDir(), asked: &moves{}}
	var err error
	n.embedded, err = embedded.New(embedded.Config{
		StateDir: n.state, RunDir: t.TempDir(), Images: noLayers{}, State: "one", Runc: "/bin/false",
	})
	if err != nil {
		t.Fatal(err)
	}
	others := []identity.Node{}
	for _, name := range members {
		others = append(others, identity.Node{Name: name})
	}
	log := slog.New(slog.DiscardHandler)
	n.Restarts = New(t.Context(), Config{
		Engine: n.embedded, Migrations: n.asked, Log: log, Changed: func() {},
		Members: location.Members{Others: func() []identity.Node { return others }, Log: log,
			Reaches:  func(string) bool { return true },
			Presence: func(context.Context, identity.Node, string) (string, error) { return "", nil },
		},
		Prepare: func(context.Context, engine.Definition) error { return errors.New("no network") },
	})
	n.again = func(context.Context, engine.Definition) error { return errors.New("it must not be started") }
	return n
}

// ended makes a container that has ended, with some failures behind it. What the wall clock said then
// has no meaning.
func (n *node) ended(number, failures int) engine.Container {
	n.t.Helper()
	id := fmt.Sprintf("%064x", number)
	dir := filepath.Join(n.state, "containers", id)
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
	one, err := n.embedded.Inspect(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return one
}

// started waits until a container is not being started any more.
func (n *node) started(container string) *followed {
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
	n := newNode(t)
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
	n := newNode(t)
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
	n := newNode(t)
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
	n := newNode(t, "c")
	n.members.Reaches = func(string) bool { return false }
	one := n.ended(1, 0)
	id := one.Definition.ID
	if why := n.whyNot(one); !strings.Contains(why, "may be on c, which cannot be reached") {
		t.Error(why)
	}
	n.Ran(id)
	if why := n.whyNot(one); !strings.Contains(why, "in a moment") {
		t.Error(why)
	}
	n.asked.moving = id
	if why := n.whyNot(one); !strings.Contains(why, "is being migrated") {
		t.Error(why)
	}
	n.follow(t.Context(), one, time.Now())
	if err := n.startAgain(t.Context(), one.Definition, false,
		n.embedded.Restart); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("started with its migration under way: %v", err)
	}
	if _, err := n.look(t.Context()); err != nil || n.hasSeen(id) {
		t.Errorf("seen %t, %v", n.hasSeen(id), err)
	}
	n.asked.moving, n.asked.unread = "", &id
	if why := n.whyNot(one); !strings.Contains(why, "journal of migration x cannot be used") ||
		!strings.Contains(why, "start --force c1") {
		t.Error(why)
	}
	if err := n.mayStart(one.Definition, true); err != nil {
		t.Errorf("a user who knows better may not start it: %v", err)
	}
	n.asked.unread = new(string) // whose is not known
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
	n := newNode(t)
	id := n.ended(1, 0).Definition.ID
	says := func(container, want string) {
		t.Helper()
		state, err := n.Holding(t.Context(), container)
		if err != nil || !strings.Contains(state, want) || (state == "") != (want == "") {
			t.Errorf("%q, %v; want %q", state, err, want)
		}
	}
	says(id, "exited")
	absent := strings.Repeat("f", 64)
	says(absent, "")
	n.asked.moving = absent
	says(absent, "under way")
	n.asked.moving, n.asked.unread = "", new(string) // it is not known of which container
	says(absent, "")
	says(id, "exited")
	n.asked.unread = &absent
	says(id, "exited")
	if state, err := n.Holding(t.Context(), absent); err == nil ||
		!strings.Contains(err.Error(), "migration x cannot be used") {
		t.Errorf("the container of a journal that cannot be used is %q, %v", state, err)
	}
	n.asked.unread = &id
	says(id, "exited")
	n.asked.unread = nil
	if err := os.WriteFile(filepath.Join(n.state, "containers", id, "record.json"),
		[]byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if state, err := n.Holding(t.Context(), id); err == nil {
		t.Errorf("a damaged one is %q", state)
	}
	if ids, err := n.embedded.Restartable(); err != nil || !slices.Contains(ids, id) {
		t.Errorf("%v, %v", ids, err)
	}
}

// TestElsewhereUnsaid: what keeps a container from starting is told with the way out: there is none
// past a node that has it, and a user may decide about a node that cannot say, such as one with an
// older version.
func TestElsewhereUnsaid(t *testing.T) {
	t.Parallel()
	n := newNode(t, "c", "d")
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
	n := newNode(t, "c", "d")
	one := n.ended(1, 0)
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
		err := n.Start(t.Context(), one, false)
		if !errors.Is(err, location.ErrElsewhere) ||
			strings.Contains(err.Error(), "start --force") != overruled {
			t.Errorf("%s: %v", code, err)
		}
		if err := n.Start(t.Context(), one, true); err == nil ||
			errors.Is(err, location.ErrElsewhere) == overruled {
			t.Errorf("%s, with force: %v", code, err)
		}
	}
}

// TestHoldingNever: an arrival that never runs here counts as nothing, and all else of that container counts.
func TestHoldingNever(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	id := n.ended(1, 0).Definition.ID
	n.asked.moving, n.asked.never = id, true
	holds := func(want string) {
		t.Helper()
		if state, err := n.Holding(t.Context(), id); err != nil || state != want {
			t.Errorf("%q, %v; want %q", state, err, want)
		}
	}
	holds("it is exited")
	arrival := filepath.Join(n.state, "containers", id, "arrival.json")
	if err := os.WriteFile(arrival, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	holds("")
	n.asked.never = false
	holds("migration m of it is under way")
}

// TestStartRefused: what a user cannot start is told with the reason.
func TestStartRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for says, change := range map[string]func(one *engine.Container){
		"belongs to docker": func(one *engine.Container) { one.Definition.EngineName = "docker" },
		"cannot be read":    func(one *engine.Container) { one.State = engine.Damaged },
		"move the journal away": func(one *engine.Container) {
			one.Leaving = &engine.Leave{Migration: "m", Target: "c"}
		},
		"no network": func(*engine.Container) {},
	} {
		one := n.ended(1, 0)
		change(&one)
		if err := n.Start(t.Context(), one, true); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	one := n.ended(1, 0)
	one.State = engine.Running
	if err := n.Start(t.Context(), one, false); err != nil {
		t.Errorf("one that runs: %v", err)
	}
	n.unheld(&one)
	if err := n.Start(t.Context(), one, false); !errors.Is(err, api.ErrRefused) ||
		!strings.Contains(err.Error(), "start --force c1") {
		t.Errorf("it is not known whether this node has it: %v", err)
	}
	if err := n.Start(t.Context(), one, true); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Errorf("with force: %v", err)
	}
}

// unheld lets a container be one of which it is not known whether this node has it.
func (n *node) unheld(one *engine.Container) {
	n.t.Helper()
	path := filepath.Join(n.state, "containers", one.Definition.ID, "restarts.json")
	if err := os.WriteFile(path, []byte(`{"holder":"another"}`), 0o600); err != nil {
		n.t.Fatal(err)
	}
	var err error
	if n.embedded, err = embedded.New(embedded.Config{StateDir: n.state, RunDir: n.t.TempDir(),
		Images: noLayers{}, State: "one", Runc: "/bin/false"}); err != nil {
		n.t.Fatal(err)
	}
	n.engine = n.embedded
	if *one, err = n.embedded.Inspect(n.t.Context(), one.Definition.ID); err != nil {
		n.t.Fatal(err)
	}
}

// TestExplain: containers that have ended and have a policy are listed, and say why they do not run.
func TestExplain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one := n.ended(1, 0)
	other, running, unwanted := one, one, one
	other.Definition.EngineName, running.State, unwanted.Definition.Restart = "docker", engine.Running, "no"
	all := []engine.Container{one, other, running}
	n.Explain(all)
	if !strings.Contains(all[0].NotRunning, "in a moment") || all[1].NotRunning != "" ||
		all[2].NotRunning != "" {
		t.Errorf("%q, %q, %q", all[0].NotRunning, all[1].NotRunning, all[2].NotRunning)
	}
	if !n.Wanted(one) || n.Wanted(unwanted) {
		t.Error("wanted")
	}
	n.unheld(&one)
	if why := n.whyNot(one); !n.Wanted(one) || !strings.Contains(why, "start --force c1") {
		t.Error(why)
	}
}

// TestRun: what is due is started, others hear of that, and the end of the node ends it.
func TestRun(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	changed := make(chan struct{}, 1)
	n.changed = func() { changed <- struct{}{} }
	n.again = func(context.Context, engine.Definition) error { return nil }
	id := n.ended(1, 0).Definition.ID
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		n.Run(ctx)
	}()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("it was not started")
	}
	cancel()
	<-over
	if !n.hasSeen(id) {
		t.Error("it was started, and is not known to have run here")
	}
	n.keep(nil)
	if n.hasSeen(id) {
		t.Error("a container that is gone is known")
	}
}
