package lxc

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// TestLockIsGivenBack: a running container is not locked for ever if LXC does not finish.
func TestLockIsGivenBack(t *testing.T) {
	e := newEngine(t)
	a := &arrival{arrivals: e.arrivals, definition: engine.Definition{ID: someID},
		place: e.place(someID, "one"), settled: make(chan struct{})}
	go a.end(t.Context(), 10*time.Millisecond, e.lock(someID))
	e.lock(someID)() // otherwise the test never ends
	close(a.settled)
	go a.end(t.Context(), time.Hour, e.lock(someID))
	e.lock(someID)()
}
