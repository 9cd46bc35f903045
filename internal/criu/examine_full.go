package criu

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// CRIU opens a descriptor in every process that it dumps, so it cannot dump one that has used up its limit.
// A freeze waits until there is none, with new connections held (kernel.Cgroup.FreezeToMove): sshd
// authenticates each client in a sandbox with such a limit. Nothing in /proc tells whether a process will
// leave this state, since other programs stay in the same sandbox for life. So a process is watched here,
// where nothing is held up, and refused only if it, the same one, has no free descriptor at any look.
const (
	usedUpPatience = 1500 * time.Millisecond
	// sandboxPatience is for processes that look like sshd's. sshd takes some tenths of a second; somebody
	// who types a password takes longer.
	sandboxPatience = 5 * time.Second
	usedUpLook      = 20 * time.Millisecond
)

// usedUp finds the processes that stay without a free descriptor. It looks at all of them at the same time.
func (x *examination) usedUp(ctx context.Context) ([]Problem, error) {
	began := time.Now()
	watched := x.tasks
	var problems []Problem
	for {
		var still []task
		for _, t := range watched {
			full, is := kernel.UsedUp(t.PID)
			if !is || !sameProcess(t) {
				continue
			}
			if time.Since(began) < patienceWith(full) {
				still = append(still, t)
				continue
			}
			problems = append(problems, problemsOf(&t, []finding{{noFD,
				fmt.Sprintf("no free descriptor below its limit (RLIMIT_NOFILE %d)", full.Limit),
				"CRIU must open one in every process that it dumps", full.Remedy}})...)
		}
		if watched = still; len(watched) == 0 {
			return problems, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(usedUpLook):
		}
	}
}

func patienceWith(full kernel.UsedUpDescriptors) time.Duration {
	if full.Sandboxed {
		return sandboxPatience
	}
	return usedUpPatience
}

// sameProcess tells whether a process has not ended since it was read.
func sameProcess(t task) bool {
	now, err := kernel.ReadProcess(t.PID)
	return err == nil && now.StartTicks == t.StartTicks
}
