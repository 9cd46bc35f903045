package inventory

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// fake is an engine that lists what it has, or fails. If it is slow, it lists what the test tells it.
type fake struct {
	engine.Engine
	name string
	has  []engine.Container
	down error
	slow chan []engine.Container
}

func (f *fake) Name() string { return f.name }

func (*fake) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (f *fake) List(context.Context) ([]engine.Container, error) {
	if f.slow != nil {
		return <-f.slow, nil
	}
	return f.has, f.down
}

func containerOf(letter string, state engine.State) engine.Container {
	return engine.Container{State: state, Definition: engine.Definition{ID: strings.Repeat(letter, 64)}}
}

// TestWatchedEngine: the engine is not asked again before it tells of a change, or stops telling.
func TestWatchedEngine(t *testing.T) {
	looks := 0
	one := containerOf("a", engine.Running)
	watched := &fake{name: "watched"}
	l := New(Config{Engines: engine.NewSet(watched), Own: &fake{}, Watched: watched, Every: time.Minute})
	l.watched.ask = func(context.Context) ([]engine.Container, error) {
		looks++
		return []engine.Container{one}, nil
	}
	l.all.ask = l.watched.get
	ask := func(want int, when string) {
		t.Helper()
		l.all.mu.Lock()
		l.all.valid = false // its time is over
		l.all.mu.Unlock()
		claims, err := l.Running(t.Context())
		short, _ := Short(one.Definition.ID)
		if _, is := claims[short]; err != nil || !is || len(claims) != 1 || looks != want {
			t.Errorf("%s: %v, %v after %d looks; want %d", when, claims, err, looks, want)
		}
	}
	ask(1, "not watched")
	ask(2, "not watched")
	l.SetWatching(true)
	ask(3, "watched")
	ask(3, "nothing was told")
	l.Changed(watched)
	ask(4, "told of a change")
	l.SetWatching(false)
	ask(5, "watched no more")
	ask(6, "watched no more")
}

// TestHungEngineDelaysNoGreeting: what was known of an engine that hangs is told until something changes,
// and nobody waits for it a second time. There is one look at it.
func TestHungEngineDelaysNoGreeting(t *testing.T) {
	looks, release := make(chan int, 100), make(chan error)
	looks <- 0
	hangs := &fake{name: "docker", has: []engine.Container{containerOf("a", engine.Running)}}
	l := New(Config{Engines: engine.NewSet(hangs), Own: &fake{}, Every: time.Minute})
	one := l.toldBy(hangs)
	one.patience = time.Minute
	if found, err := l.told(t.Context(), hangs); err != nil || len(found) != 1 || l.Hangs(hangs) {
		t.Fatalf("%+v, %v of an engine that answers", found, err)
	}
	began := make(chan struct{}, cap(looks))
	one.ask = func(context.Context) ([]engine.Container, error) {
		looks <- <-looks + 1
		began <- struct{}{}
		return nil, <-release
	}
	one.patience = time.Millisecond
	for range 3 {
		if found, err := l.told(t.Context(), hangs); err != nil || len(found) != 1 || !l.Hangs(hangs) {
			t.Errorf("%+v, %v: what was known is not told", found, err)
		}
	}
	l.Changed(&fake{})
	if found, err := l.told(t.Context(), hangs); err != nil || len(found) != 1 {
		t.Errorf("%+v, %v: only another engine has changed", found, err)
	}
	l.Changed(hangs)
	for range 3 {
		if found, err := l.told(t.Context(), hangs); !errors.Is(err, errHangs) || len(found) > 0 {
			t.Errorf("%+v, %v: it may have changed", found, err)
		}
	}
	<-began
	if count := <-looks; count != 1 {
		t.Errorf("%d looks at an engine that hangs", count)
	}
	one.ask = hangs.List
	release <- errors.New("it did not answer")
	for answers := false; !answers; { // by a look that nobody waits for
		_, err := l.told(t.Context(), hangs)
		answers = err == nil
	}
	if l.Hangs(hangs) {
		t.Error("it answers again, and is said to hang")
	}
}

// TestSlowEngine: of an engine that takes longer than greetings wait, the containers count that ran when the
// engine answered last, for as long as their first processes run. A container has ended when the engine has
// said so, and not before.
func TestSlowEngine(t *testing.T) {
	slow := &fake{name: "slow", slow: make(chan []engine.Container, 1)}
	own := &fake{}
	l := New(Config{Engines: engine.NewSet(own, slow), Own: own, Every: time.Minute})
	l.all.age = func() time.Duration { return 0 }
	sleeps := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleeps.Start(); err != nil {
		t.Fatal(err)
	}
	web := containerOf("a", engine.Running)
	web.Definition.EngineName, web.PID = "slow", sleeps.Process.Pid
	for now, started := uint64(0), ticksOf(t, web.PID); now <= started; {
		var err error
		if now, err = kernel.Ticks(); err != nil {
			t.Fatal(err)
		}
	}
	l.toldBy(slow).patience = time.Minute
	slow.slow <- []engine.Container{web}
	short, _ := Short(web.Definition.ID)
	if running, err := l.Running(t.Context()); err != nil || running[short] == nil {
		t.Fatalf("%v, %v", running, err)
	}
	l.toldBy(slow).patience = time.Millisecond
	l.Changed(slow) // what is known of the engine is not valid any more
	state := func(when string, runs bool) {
		t.Helper()
		if running, _ := l.Running(t.Context()); (running[short] != nil) != runs {
			t.Errorf("%s: it runs: %v, want %t", when, running, runs)
		}
		if !l.Hangs(slow) || l.Ended(web.Definition) || l.RunsYet(slow, web.Definition.ID) != runs {
			t.Errorf("%s: hangs: %t, ended: %t, runs yet: %t", when, l.Hangs(slow), l.Ended(web.Definition),
				l.RunsYet(slow, web.Definition.ID))
		}
	}
	state("its first process runs", true)
	if err := sleeps.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleeps.Wait()
	state("its first process has ended", false)
	slow.slow <- nil
	for !l.Ended(web.Definition) { // until that answer has come
		_, _ = l.told(t.Context(), slow)
	}
	slow.slow <- nil // a look may be under way
}

func ticksOf(t *testing.T, pid int) uint64 {
	t.Helper()
	process, err := kernel.ReadProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return process.StartTicks
}

// TestUnheard: an engine is unheard until its first look has ended.
func TestUnheard(t *testing.T) {
	slow := &fake{name: "slow", slow: make(chan []engine.Container)}
	own := &fake{has: []engine.Container{containerOf("b", engine.Running)}}
	l := New(Config{Engines: engine.NewSet(own, slow), Own: own, Every: time.Minute})
	l.all.age = func() time.Duration { return 0 }
	l.toldBy(slow).patience = time.Millisecond
	for range 3 {
		if all, err := l.All(t.Context()); err != nil || len(all) != 1 || !l.Unheard() {
			t.Errorf("%v, %v, unheard: %t; want the own engine's container", all, err, l.Unheard())
		}
	}
	slow.slow <- []engine.Container{containerOf("a", engine.Running)}
	close(slow.slow)
	for l.Unheard() {
		_, _ = l.All(t.Context())
	}
}

// TestAddressed: an engine that does not answer may have given any address to a container; one that is away
// has given none.
func TestAddressed(t *testing.T) {
	own := &fake{has: []engine.Container{containerOf("a", engine.Running)}}
	other := &fake{name: "lxc", has: []engine.Container{containerOf("b", engine.Exited)}}
	l := New(Config{Engines: engine.NewSet(own, other), Own: own, Routed: []engine.Engine{other},
		Every: time.Minute})
	for _, c := range []struct {
		down error
		want int
		err  error
	}{
		{nil, 2, nil}, {engine.ErrAway, 1, nil}, {context.DeadlineExceeded, 1, context.DeadlineExceeded},
	} {
		if other.down = c.down; c.down != nil {
			other.has = nil
		}
		if all, err := l.Addressed(t.Context()); len(all) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%v: %v, %v", c.down, all, err)
		}
		l.Changed(other)
		if all, err := l.WithAddresses(t.Context()); len(all) != c.want || !errors.Is(err, c.err) {
			t.Errorf("listed, %v: %v, %v", c.down, all, err)
		}
	}
}

// TestShort shortens ids, and refuses what is not an id.
func TestShort(t *testing.T) {
	t.Parallel()
	if short, is := Short("00000000000012ff" + strings.Repeat("a", 48)); !is || short != 0x12ff {
		t.Errorf("got %x, %t", short, is)
	}
	for _, id := range []string{"", "12", strings.Repeat("x", 64), "-000000000000001"} {
		if _, is := Short(id); is {
			t.Errorf("%q was taken for an id", id)
		}
	}
}
