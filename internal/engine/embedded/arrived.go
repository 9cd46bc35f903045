package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/kernel"
)

// Arrived returns the outcome of an arrival, also after the agent crashed.
func (r *arrivals) Arrived(ctx context.Context, id string) (engine.Outcome, error) {
	if !idPattern.MatchString(id) {
		return "", fmt.Errorf("container %.80q: %w", id, engine.ErrNotFound)
	}
	r.waiting.End(id)
	defer r.catalog.lock(id)()
	place := r.paths.of(id)
	if !durable.Exists(place.arrival()) {
		if durable.Exists(place.definition()) {
			return engine.Ran, nil
		}
		return engine.NeverRan, nil
	}
	outcome, err := r.outcome(ctx, place)
	if err == nil && outcome == engine.Ran {
		err = r.settleArrival(ctx, place)
	}
	if err != nil {
		return "", fmt.Errorf("find out about the arrival of container %.12s: %w", id, err)
	}
	return outcome, nil
}

// outcome looks for the restore proxy's record. If there is none, outcome makes sure that none can be made
// later.
func (r *arrivals) outcome(ctx context.Context, place container) (engine.Outcome, error) {
	if anew, err := startedAnew(place); err != nil || anew {
		return r.outcomeAnew(ctx, place, err)
	}
	ran, err := checkpoint.Ran(ctx, place.resumed())
	if err != nil {
		return "", err
	}
	if !ran {
		// runc may not have reached its restore proxy: it ends here, with its monitor's session.
		if err := endSession(ctx, place); err != nil {
			return "", err
		}
		if ran, err = criu.Ran(ctx, place.resumed()); err != nil {
			return "", err
		}
	}
	if ran {
		return engine.Ran, nil
	}
	return engine.NeverRan, nil
}

// Discard removes an arrival that never ran.
func (r *arrivals) Discard(ctx context.Context, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("container %.80q: %w", id, engine.ErrNotFound)
	}
	r.waiting.End(id)
	defer r.catalog.lock(id)()
	place := r.paths.of(id)
	if durable.Exists(place.definition()) && !durable.Exists(place.arrival()) {
		return fmt.Errorf("discard the arrival of container %.12s: %w: it runs here; remove it instead",
			id, engine.ErrBusy)
	}
	return r.discard(ctx, place)
}

// discard ends and removes all of an arrival, which must not have run.
func (r *arrivals) discard(ctx context.Context, place container) error {
	if durable.Exists(place.arrival()) {
		outcome, err := r.outcome(ctx, place)
		if err == nil && outcome == engine.Ran {
			err = fmt.Errorf("%w: it has been resumed; remove it instead", engine.ErrBusy)
		}
		if err != nil {
			return fmt.Errorf("discard the arrival of container %.12s: %w", place.id, err)
		}
	}
	var was arrivalRecord
	if err := durable.Load(place.arrival(), &was); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := r.processes.settle(ctx, place); err != nil {
		return fmt.Errorf("discard the arrival of container %.12s: %w", place.id, err)
	}
	if err := r.volumes.unmakeVolumes(ctx, place.id, r.volumes.made(was)); err != nil {
		return fmt.Errorf("discard the arrival of container %.12s: %w", place.id, err)
	}
	return removeFiles(place, nil)
}

// settleArrival makes a resumed arrival a container.
func (r *arrivals) settleArrival(ctx context.Context, place container) error {
	err := awaitRecord(ctx, place)
	if err == nil {
		err = mounts.Unmount(place.images())
	}
	if err == nil {
		err = kernel.RemoveDurable(place.arrival())
	}
	if err != nil {
		return fmt.Errorf("clean up after the arrival of container %.12s: %w", place.id, err)
	}
	return nil
}

// awaitRecord waits until a resumed container's monitor has recorded that the container runs. If the node
// or the monitor went down before that, awaitRecord records that the container ran, and that its end was
// not seen.
func awaitRecord(ctx context.Context, place container) error {
	const pause = 5 * time.Millisecond
	for {
		var live liveState
		if err := durable.Load(place.runtime(), &live); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		watched := live.Monitor.Alive()
		var now record
		if err := durable.Load(place.record(), &now); err != nil {
			return err
		}
		switch {
		case now.State != engine.Created:
			return nil
		case !watched:
			return durable.Save(place.record(), record{State: engine.Running, Started: time.Now()})
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for its monitor: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}
