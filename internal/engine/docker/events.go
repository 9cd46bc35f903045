package docker

import (
	"context"
	"fmt"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
)

// Watch calls changed whenever containers of this node's Docker have started, ended or been removed, and
// whenever networks have been made or removed. It calls watching once, when it begins to receive these
// events, and returns when it no longer receives them. Docker drops events that nobody reads for long.
// Error: engine.ErrAway.
func (e *Engine) Watch(ctx context.Context, watching, changed func()) error {
	if err := e.docker.Away(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := e.docker.api(ctx).Events(ctx, client.EventsListOptions{Filters: make(client.Filters).
		Add("type", string(events.ContainerEventType), string(events.NetworkEventType)).
		Add("event", string(events.ActionStart), string(events.ActionDie), string(events.ActionCreate),
			string(events.ActionDestroy)),
	})
	watching() // Events returns when Docker has answered the request
	for {
		select {
		case one := <-told.Messages:
			if one.Type == events.NetworkEventType || one.Action != events.ActionCreate {
				changed()
			}
		case err := <-told.Err:
			return fmt.Errorf("read Docker's events: %w", err)
		}
	}
}
