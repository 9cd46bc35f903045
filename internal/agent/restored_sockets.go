package agent

import (
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// roomEvery is how long a connection may stand still that needs room; its peer then repeats itself
// more and more seldom.
const roomEvery = 200 * time.Millisecond

// firstRoom is when they are looked at first: before, the container has the processor for those who
// have waited for it.
const firstRoom = 50 * time.Millisecond

// roomPatience is how long queues are looked at: what a restore has packed too densely has been
// read by then, or its peer is gone.
const roomPatience = 5 * time.Minute

// giveRoom gives room to connections of a container that has just been restored, for as long as one
// may need it. First it gives them back the size of their segments.
func (a *Agent) giveRoom(definition engine.Definition) {
	relief, told, sized := criu.NewRelief(), false, false
	for began, wait := time.Now(), firstRoom; time.Since(began) < roomPatience; wait = roomEvery {
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(wait):
		}
		pids, err := a.engines.EngineFor(definition).Processes(a.ctx, definition.ID)
		if err != nil || a.leaves(definition.ID) {
			return // it has ended, or is elsewhere, or soon
		}
		if !sized {
			sized = true
			if err := criu.SyncSegments(pids); err != nil {
				a.log.Warn("connections may send small segments", "container", definition.ID, "error", err)
			}
		}
		tight, err := relief.Give(pids)
		if err != nil && !told {
			told = true
			a.log.Warn("connections whose receive queues are full may stall", "container",
				definition.ID, "error", err)
		}
		if tight == 0 && err == nil {
			return
		}
	}
}

// leaves reports whether a container is being moved away.
func (a *Agent) leaves(id string) bool {
	m := a.moves.Of(id)
	return m != nil && m.Tracker.Spec.Side == migration.Source
}
