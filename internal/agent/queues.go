package agent

import (
	"time"

	"github.com/godwit/godwit/internal/criu"
)

// roomEvery is how long a connection may stand still that needs room; its peer then repeats itself more and more seldom.
const roomEvery = 200 * time.Millisecond

// giveRoom gives room to connections of a container that has just been restored, for as long as one may need it.
func (a *Agent) giveRoom(id string) {
	relief := criu.NewRelief()
	for tight := 1; tight > 0; {
		pids, err := a.engine.Processes(a.ctx, id)
		if err != nil {
			return // it has ended, or is elsewhere
		}
		if tight, err = relief.Give(pids); err != nil {
			a.log.Warn("connections may stand still whose receive queues are full", "container", id, "error", err)
			return
		}
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(roomEvery):
		}
	}
}
