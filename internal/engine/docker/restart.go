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

// Restart says whether Docker is to start a container again that has ended.
func (a *adapter) Restart(ctx context.Context, found oci.Container, told json.RawMessage) error {
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

// StartsAtBoot tells whether Docker would start a container that ran when the machine went down.
func (a *adapter) StartsAtBoot(found oci.Container, told json.RawMessage) bool {
	var policy container.RestartPolicy
	return json.Unmarshal(told, &policy) == nil && restarts(policy, native(found))
}

// restarts tells whether Docker starts a container by a policy that has ended, if nobody has had
// Docker end it.
func restarts(policy container.RestartPolicy, found container.InspectResponse) bool {
	return !policy.IsNone() && !(policy.IsOnFailure() && found.State.ExitCode == 0)
}

// Restarts tells whether Docker would have started a container again that has ended. What somebody
// has had Docker end it does not start; it remembers that, but tells it only as long as it tells of
// the event, the last 256 of them (daemon/events, eventsLimit).
func (a *adapter) Restarts(
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

// wasEnded tells whether somebody has had Docker end a container since then.
func (a *adapter) wasEnded(ctx context.Context, engineID string, since time.Time) (bool, error) {
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

// window is the time of which Docker is to tell events, which it refuses to do of one that ends
// before it begins: the clock may have been set back. Those of too long a time only have more be
// taken for ended by somebody.
func window(since, now time.Time) (from, until time.Time) {
	const long = 24 * time.Hour
	if since.After(now) {
		since = now.Add(-long)
	}
	return since, now
}
