package lxc

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/durable"
)

// endPatience is how long LXC's monitor may take to end after the container.
const endPatience = 10 * time.Second

// remover removes containers.
type remover struct{ tools *tools }

// remove removes a container whose processes are gone, or about to go, with LXC's tool, and all our files
// of it.
func (r *remover) remove(ctx context.Context, p place) error {
	if err := r.awaitEnd(ctx, p); err != nil {
		return err
	}
	if durable.Exists(p.config()) {
		if _, err := r.tools.tool(ctx, "lxc-destroy", p.name); err != nil {
			return err
		}
	}
	// The files that LXC leaves in the directory are ours. Anything else, such as a mount of a user, is not
	// removed.
	for _, path := range []string{p.own(), p.aside(), p.lxc} {
		if err := durable.Remove(path); err != nil {
			return fmt.Errorf("remove what is left: %w", err)
		}
	}
	return p.forget()
}

// awaitEnd waits until LXC's monitor has ended, and ends a monitor that does not.
func (r *remover) awaitEnd(ctx context.Context, p place) error {
	const pause = 5 * time.Millisecond
	for deadline := time.Now().Add(endPatience); ; {
		monitors, err := r.tools.monitors()
		if err != nil || !monitors[p.name] {
			return err
		}
		if time.Now().After(deadline) {
			return p.sweep(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for LXC's monitor of container %s: %w", p.name, ctx.Err())
		case <-time.After(pause):
		}
	}
}
