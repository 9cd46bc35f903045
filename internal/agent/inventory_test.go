package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// TestInventory: greetings share one look, until something has changed.
func TestInventory(t *testing.T) {
	looks := 0
	var during func()
	var fails error
	i := &inventory{list: func(context.Context) ([]engine.Container, error) {
		looks++
		if during != nil {
			during()
		}
		return make([]engine.Container, looks), fails
	}}
	get := func(want int) {
		t.Helper()
		found, err := i.get(t.Context())
		if !errors.Is(err, fails) || len(found) != want {
			t.Errorf("look %d, %v; want look %d", len(found), err, want)
		}
	}
	get(1)
	get(1)
	i.changed()
	get(2)
	get(2)

	// What changes during a look is not missed.
	i.changed()
	during = func() {
		during = nil
		i.changed()
	}
	get(4)
	get(4)

	// Changes that do not end keep nobody waiting.
	i.changed()
	during = func() { i.changed() }
	get(6)
	during = nil
	get(7)

	// An error is not kept.
	i.changed()
	fails = errors.New("no answer")
	get(8)
	get(9)
}

// TestInventoryOfAWatchedEngine: the engine is not asked again before it tells of a change, or stops telling.
func TestInventoryOfAWatchedEngine(t *testing.T) {
	looks := 0
	id := strings.Repeat("a", 64)
	l := newLocations(&Agent{})
	l.agent.locations = l
	l.watched.list = func(context.Context) ([]engine.Container, error) {
		looks++
		return []engine.Container{{Definition: engine.Definition{ID: id}, State: engine.Running}}, nil
	}
	l.all.list = l.watched.get
	ask := func(want int, when string) {
		t.Helper()
		l.all.mu.Lock()
		l.all.valid = false // its time is over
		l.all.mu.Unlock()
		claims, err := l.all.claims(t.Context())
		short, _ := claimOf(id)
		if _, is := claims[short]; err != nil || !is || len(claims) != 1 || looks != want {
			t.Errorf("%s: %v, %v after %d looks; want %d", when, claims, err, looks, want)
		}
	}
	ask(1, "not watched")
	ask(2, "not watched")
	l.setWatching(true)
	ask(3, "watched")
	ask(3, "nothing was told")
	l.agent.containersChanged(l.agent.watched)
	ask(4, "told of a change")
	l.setWatching(false)
	ask(5, "watched no more")
	ask(6, "watched no more")
}

// TestHungEngineDelaysNoGreeting: what was known of an engine that hangs is told until something changes,
// and nobody waits for it a second time. There is one look at it.
func TestHungEngineDelaysNoGreeting(t *testing.T) {
	looks, release := make(chan int, 100), make(chan error)
	looks <- 0
	hangs := &otherEngine{has: engine.Definition{EngineName: "docker", ID: strings.Repeat("a", 64)}}
	l := newLocations(&Agent{engines: engine.NewSet(hangs)})
	l.agent.locations = l
	one := l.toldBy(hangs)
	one.patience = time.Minute
	if found, err := l.told(t.Context(), hangs); err != nil || len(found) != 1 || l.hangs(hangs) {
		t.Fatalf("%+v, %v of an engine that answers", found, err)
	}
	began := make(chan struct{}, cap(looks))
	one.list = func(context.Context) ([]engine.Container, error) {
		looks <- <-looks + 1
		began <- struct{}{}
		return nil, <-release
	}
	one.patience = time.Millisecond
	for range 3 {
		if found, err := l.told(t.Context(), hangs); err != nil || len(found) != 1 || !l.hangs(hangs) {
			t.Errorf("%+v, %v: what was known is not told", found, err)
		}
	}
	l.agent.containersChanged(&slowToList{})
	if found, err := l.told(t.Context(), hangs); err != nil || len(found) != 1 {
		t.Errorf("%+v, %v: only another engine has changed", found, err)
	}
	l.agent.containersChanged(hangs)
	for range 3 {
		if found, err := l.told(t.Context(), hangs); !errors.Is(err, errHangs) || len(found) > 0 {
			t.Errorf("%+v, %v: it may have changed", found, err)
		}
	}
	<-began
	if count := <-looks; count != 1 {
		t.Errorf("%d looks at an engine that hangs", count)
	}
	one.list = hangs.List
	release <- errors.New("it did not answer")
	for answers := false; !answers; { // by a look that nobody waits for
		_, err := l.told(t.Context(), hangs)
		answers = err == nil
	}
	if l.hangs(hangs) {
		t.Error("it answers again, and is said to hang")
	}
}

// TestLacks: a container has ended for sure only if its engine says that it does not run, or does not have
// it.
func TestLacks(t *testing.T) {
	for state, want := range map[engine.State]bool{
		engine.Exited: true, engine.Running: false, engine.Damaged: false,
	} {
		has := []engine.Container{{Definition: engine.Definition{ID: testContainer}, State: state}}
		i := &inventory{containers: has, valid: true, taken: time.Now()}
		if i.lacks(testContainer) != want || !i.lacks("another") {
			t.Errorf("%s: lacks is not %t", state, want)
		}
	}
}

// TestStoppedEngineLacks: an engine that is stopped after it hung runs nothing, and is not said to hang.
func TestStoppedEngineLacks(t *testing.T) {
	release := make(chan error)
	i := &inventory{hasty: true, patience: time.Millisecond,
		list: func(context.Context) ([]engine.Container, error) {
			return nil, <-release
		}}
	if _, err := i.get(t.Context()); !errors.Is(err, errUnheard) || i.lacks(testContainer) {
		t.Fatalf("%v of an engine that has never answered, and it lacks a container: %t",
			err, i.lacks(testContainer))
	}
	i.mu.Lock()
	look := i.underWay
	i.mu.Unlock()
	release <- engine.ErrAway
	<-look.done
	if !i.lacks(testContainer) {
		t.Error("an engine that is away may run a container")
	}
}

// TestChangeNeedsNoPlaces: a migration that ends reports changes while its own mutex is locked, so it must
// not wait for the mutex of the locations.
func TestChangeNeedsNoPlaces(*testing.T) {
	other := &otherEngine{has: engine.Definition{EngineName: "docker"}}
	l := newLocations(&Agent{engines: engine.NewSet(other)})
	l.agent.locations = l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agent.containersChanged(other)
}
