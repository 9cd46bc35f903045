package inventory

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// TestList: greetings share one look, until something has changed.
func TestList(t *testing.T) {
	looks := 0
	var during func()
	var fails error
	i := &list{every: time.Minute, ask: func(context.Context) ([]engine.Container, error) {
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

// TestLacks: a container has ended for sure only if its engine says that it does not run, or does not have
// it.
func TestLacks(t *testing.T) {
	some := strings.Repeat("a", 64)
	for state, want := range map[engine.State]bool{
		engine.Exited: true, engine.Running: false, engine.Damaged: false,
	} {
		has := []engine.Container{containerOf("a", state)}
		i := &list{every: time.Minute, containers: has, valid: true, taken: time.Now()}
		if i.lacks(some) != want || !i.lacks("another") {
			t.Errorf("%s: lacks is not %t", state, want)
		}
	}
}

// TestStoppedEngineLacks: an engine that is stopped after it hung runs nothing, and is not said to hang.
func TestStoppedEngineLacks(t *testing.T) {
	release := make(chan error)
	i := &list{every: time.Minute, hasty: true, patience: time.Millisecond,
		ask: func(context.Context) ([]engine.Container, error) {
			return nil, <-release
		}}
	if _, err := i.get(t.Context()); !errors.Is(err, errUnheard) || i.lacks("some") {
		t.Fatalf("%v of an engine that has never answered, and it lacks a container: %t",
			err, i.lacks("some"))
	}
	i.mu.Lock()
	look := i.underWay
	i.mu.Unlock()
	release <- engine.ErrAway
	<-look.done
	if !i.lacks("some") {
		t.Error("an engine that is away may run a container")
	}
}
