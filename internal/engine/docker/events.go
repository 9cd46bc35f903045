package docker

import (
	"context"
	"fmt"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
)

// Watch tells whenever containers of this node's Docker have begun or ended, and networks have been made or removed, until that cannot be
// known any more. Docker forgets what it has to tell if nobody takes it for long. Error: engine.ErrAway.
func (e *Engine) Watch(ctx context.Context, changed func()) error {
	if err := e.docker.Away(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := e.docker.api.Events(ctx, client.EventsListOptions{Filters: make(client.Filters).
		Add("type", string(events.ContainerEventType), string(events.NetworkEventType)).
		Add("event", string(events.ActionStart), string(events.ActionDie), string(events.ActionCreate), string(events.ActionDestroy)),
	})
	for {
		select {
		case one := <-told.Messages:
			if one.Type == events.NetworkEventType || one.Action == events.ActionStart || one.Action == events.ActionDie {
				changed()
			}
		case err := <-told.Err:
			return fmt.Errorf("what Docker tells: %w", err)
		}
	}
}
