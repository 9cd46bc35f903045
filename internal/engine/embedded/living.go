package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// living returns what is known about a container's processes, and whether it has any. If its monitor's
// record is gone, because somebody has emptied the run directory, living uses its cgroup; then the monitor
// is unknown.
func living(files container) (now liveState, lives bool, err error) {
	err = durable.Load(files.runtime(), &now)
	if !errors.Is(err, fs.ErrNotExist) {
		return now, err == nil && (now.Init.Alive() || now.Monitor.Alive()), err
	}
	now.Init, lives, err = firstProcess(files)
	return now, lives, err
}

// firstProcess finds a container's first process by its cgroup, and reports whether there is any process.
func firstProcess(files container) (first checkpoint.Identity, found bool, err error) {
	group, err := cgroup.Open(files.cgroup())
	if errors.Is(err, fs.ErrNotExist) { // as after a boot
		return first, false, nil
	}
	var pids []int
	if err == nil {
		pids, err = group.Procs()
	}
	if err != nil {
		return first, false, fmt.Errorf("look for processes: %w", err)
	}
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (process.State == 'Z' || process.State == 'X') {
			continue
		}
		if err != nil {
			return first, true, err
		}
		if found = true; process.NamespaceID == 1 {
			first, err = checkpoint.Identify(pid)
			return first, true, err
		}
	}
	return first, found, nil
}

// frozen reports whether a container's cgroup was told to freeze, and not to thaw since.
func frozen(files container) bool {
	group, err := cgroup.Open(files.cgroup())
	if err != nil {
		return false
	}
	is, err := group.ToldToFreeze()
	return err == nil && is
}

// waitGone waits until a process has ended.
func waitGone(ctx context.Context, process checkpoint.Identity) error {
	const pause = 5 * time.Millisecond
	for process.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to end: %w", process.PID, ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}

// waitEnded waits until a container's monitor has recorded its end, or neither of them exists any more.
func waitEnded(ctx context.Context, place container) error {
	const pause = 2 * time.Millisecond
	for {
		ended, err := hasEnded(place)
		if err != nil || ended {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for its end: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

func hasEnded(place container) (bool, error) {
	var was record
	if err := durable.Load(place.record(), &was); err != nil {
		return false, err
	}
	if was.State == engine.Exited {
		return true, nil
	}
	_, lives, err := living(place)
	return err == nil && !lives, err
}
