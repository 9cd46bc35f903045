package agent

import (
	"context"
	"errors"
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
