package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine/oci"
)

var _ oci.Restarter = (*adapter)(nil)

// starts decides which containers Docker may start, and knows which ones it would.
type starts struct{ *server }

// Restart sets whether Docker restarts a container that has ended.
func (a *starts) Restart(ctx context.Context, found oci.Container, told json.RawMessage) error {
	policy := container.RestartPolicy{Name: container.RestartPolicyDisabled}
	if told != nil {
		if err := json.Unmarshal(told, &policy); err != nil {
			return fmt.Errorf("restart policy of container %s: %w", nameOf(native(found)), err)
		}
	}
	if samePolicy(native(found).HostConfig.RestartPolicy, policy) {
		return nil
	}
	if _, err := a.api(ctx).ContainerUpdate(ctx, found.ID,
		client.ContainerUpdateOptions{RestartPolicy: &policy}); err != nil {
		return fmt.Errorf("restart policy of container %s: %w", nameOf(native(found)), err)
	}
	return nil
}

func samePolicy(a, b container.RestartPolicy) bool {
	if a.IsNone() || b.IsNone() {
		return a.IsNone() == b.IsNone()
	}
	return a == b
}

// StartsAtBoot reports whether Docker would start a container that was running when the machine went down.
func (a *starts) StartsAtBoot(found oci.Container, told json.RawMessage) bool {
	var policy container.RestartPolicy
	return json.Unmarshal(told, &policy) == nil && restarts(policy, native(found))
}

// restarts reports whether Docker, with this policy, restarts a container that has ended, provided that
// nobody has stopped it with Docker.
func restarts(policy container.RestartPolicy, found container.InspectResponse) bool {
	return !policy.IsNone() && !(policy.IsOnFailure() && found.State.ExitCode == 0)
}

// Restarts reports whether Docker would have restarted a container that has ended. Docker does not restart
// a container that somebody has stopped with Docker. It remembers that, but reports it only through the
// event, of which it keeps the last 256 (daemon/events, eventsLimit).
func (a *starts) Restarts(
	ctx context.Context, found oci.Container, told json.RawMessage, since time.Time,
) (bool, error) {
	var policy container.RestartPolicy
	if err := json.Unmarshal(told, &policy); err != nil {
		return false, fmt.Errorf("restart policy of container %s: %w", nameOf(native(found)), err)
	}
	if !restarts(policy, native(found)) {
		return false, nil
	}
	ended, err := a.wasEnded(ctx, found.ID, since)
	return err == nil && !ended, err
}

// wasEnded reports whether somebody has stopped a container with Docker since then.
func (a *starts) wasEnded(ctx context.Context, engineID string, since time.Time) (bool, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	since, until := window(since, time.Now())
	at := func(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }
	told := a.api(ctx).Events(ctx, client.EventsListOptions{Since: at(since), Until: at(until),
		Filters: make(client.Filters).
			Add("type", string(events.ContainerEventType)).Add("container", engineID).
			Add("event", string(events.ActionKill), string(events.ActionStop)),
	})
	select {
	case <-told.Messages:
		return true, nil
	case err := <-told.Err:
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		return false, fmt.Errorf("ask Docker why container %.12s ended: %w", engineID, err)
	}
}

// window returns the interval for which Docker is queried for events. Docker refuses an interval that ends
// before it begins, as may happen when the clock was set back. Too long an interval only means that more
// containers count as stopped by somebody.
func window(since, now time.Time) (from, until time.Time) {
	const long = 24 * time.Hour
	if since.After(now) {
		since = now.Add(-long)
	}
	return since, now
}
