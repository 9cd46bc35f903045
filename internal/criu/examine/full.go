package examine

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// CRIU opens a descriptor in every process that it dumps, so it cannot dump one that has used up its limit.
// A freeze waits until there is none, with new connections held (cgroup.Cgroup.FreezeToMove). Here nothing is
// held up, so a process is watched for a while, and refused only if it has no free descriptor at any look.
//
// sshd authenticates each client in a sandbox with such a limit, for as long as the client takes to type a
// password. These processes are left to the freeze. sshd ends them after LoginGraceTime, which is two
// minutes unless an administrator changes it (sshd_config(5)). Nothing in /proc but its age tells such a
// process from one that stays in the same sandbox for life.
const (
	usedUpPatience  = 1500 * time.Millisecond
	usedUpLook      = 20 * time.Millisecond
	sandboxPatience = 10 * time.Minute // age of a process that stays in its sandbox
)

// usedUp finds the processes that stay without a free descriptor. It looks at all of them at the same time.
func (x *examination) usedUp(ctx context.Context) ([]Problem, error) {
	began := time.Now()
	watched := x.tasks
	var problems []Problem
	for {
		var still []task
		for _, t := range watched {
			full, is := cgroup.UsedUp(t.PID)
			if !is || !sameProcess(t) || leftToFreeze(full) {
				continue
			}
			if time.Since(began) < usedUpPatience {
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

// leftToFreeze reports whether a process may be one that authenticates a client of sshd.
func leftToFreeze(full cgroup.UsedUpDescriptors) bool {
	return full.Sandboxed && full.Age < sandboxPatience
}

func sameProcess(t task) bool {
	now, err := kernel.ReadProcess(t.PID)
	return err == nil && now.StartTicks == t.StartTicks
}
