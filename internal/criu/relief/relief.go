// Package relief lets the connections of a container go on that was just restored: it gives them back the
// size of their segments, and room to those whose receive queues CRIU has packed too densely.
//
// How that is done with a socket is for package criu. This package decides when sockets are looked at, and
// for how long; it knows no engine.
package relief

import (
	"context"
	"log/slog"
	"time"

	"github.com/godwit/godwit/internal/criu"
)

const (
	// roomEvery is how long a connection may stand still that needs room; its peer then repeats itself
	// more and more seldom.
	roomEvery = 200 * time.Millisecond
	// firstRoom is when they are looked at first: before, the container has the processor for those who
	// have waited for it.
	firstRoom = 50 * time.Millisecond
	// roomPatience is how long queues are looked at: what a restore has packed too densely has been
	// read by then, or its peer is gone.
	roomPatience = 5 * time.Minute
)

// Container is one that was just restored.
type Container struct {
	ID        string
	Processes func(ctx context.Context) ([]int, error) // an error: it has ended
	Leaves    func() bool                              // it is being moved away
	Log       *slog.Logger
}

// sockets are those of processes. See package criu.
type sockets struct {
	sync func(pids []int) error
	give func(pids []int) (tight int, err error)
}

// Give gives room to connections of the container, for as long as one may need it. First it gives them
// back the size of their segments.
func Give(ctx context.Context, c Container) {
	c.give(ctx, sockets{criu.SyncSegments, criu.NewRelief().Give})
}

func (c Container) give(ctx context.Context, s sockets) {
	told, sized := false, false
	for began, wait := time.Now(), firstRoom; time.Since(began) < roomPatience; wait = roomEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		pids, err := c.Processes(ctx)
		if err != nil || c.Leaves() {
			return // it has ended, or is elsewhere, or soon
		}
		if !sized {
			sized = true
			if err := s.sync(pids); err != nil {
				c.Log.Warn("connections may send small segments", "container", c.ID, "error", err)
			}
		}
		tight, err := s.give(pids)
		if err != nil && !told {
			told = true
			c.Log.Warn("connections whose receive queues are full may stall", "container", c.ID, "error", err)
		}
		if tight == 0 && err == nil {
			return
		}
	}
}
