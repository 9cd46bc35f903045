package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

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
	l.agent.containersChanged()
	ask(4, "told of a change")
	l.setWatching(false)
	ask(5, "watched no more")
	ask(6, "watched no more")
}
