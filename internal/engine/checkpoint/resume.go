package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// Resume resumes the processes of a cgroup once no CRIU holds them any more.
func Resume(ctx context.Context, group *cgroup.Cgroup) error {
	pids, err := group.Procs()
	if err != nil {
		return err
	}
	if err := release(ctx, group, pids); err != nil {
		return err
	}
	if err := waitUntraced(ctx, pids); err != nil {
		return err
	}
	if _, err := criu.Unrepair(pids); err != nil {
		return fmt.Errorf("take its sockets out of repair: %w", err)
	}
	// Names that stay are clutter in the container's files, but no reason to keep it frozen.
	_, _ = criu.RemoveLinkRemaps(pids)
	return group.Thaw()
}

// release releases processes that a kernel.Seizure holds. They stay frozen, even if somebody has thawed
// them while they were held, because their sockets are still in repair mode. Killed processes end.
func release(ctx context.Context, group *cgroup.Cgroup, pids []int) error {
	goesOn := func(pid int) bool { return kernel.Seized(pid) && !kernel.Killed(pid) }
	if slices.ContainsFunc(pids, goesOn) {
		if err := group.KeepFrozen(ctx); err != nil {
			return err
		}
	}
	return kernel.ReleaseSeized(ctx, pids)
}

// waitUntraced waits for a CRIU whose agent was killed: that CRIU notices this and undoes its changes in
// the processes. A CRIU that does not is killed in the end.
func waitUntraced(ctx context.Context, pids []int) error {
	const patience, pause = 5 * time.Second, 5 * time.Millisecond
	for deadline := time.Now().Add(patience); ; {
		tracer := tracerOf(pids)
		if tracer == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			process, err := Identify(tracer)
			if err == nil {
				err = process.Kill()
			}
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for CRIU (process %d) to let go: %w", tracer, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func tracerOf(pids []int) int {
	for _, pid := range pids {
		for _, tracer := range kernel.Tracers(pid) {
			// The container's own debugger is one of the processes, not a CRIU.
			if !slices.Contains(pids, tracer) {
				return tracer
			}
		}
	}
	return 0
}
