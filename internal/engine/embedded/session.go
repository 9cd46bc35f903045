package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/engine/records"
)

// endSession kills a container's monitor and what it started that still runs in its session: runc, the gate and CRIU,
// not the container, whose processes have sessions of their own. It returns when all are gone.
func endSession(ctx context.Context, place container) error {
	const pause = 2 * time.Millisecond
	var last liveState
	if err := records.Load(place.runtime(), &last); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for {
		left, err := sessionOf(last.Monitor)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		for _, process := range left {
			if err := process.Kill(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the monitor of container %.12s: %w", place.id, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// sessionOf lists the processes that are alive in the session that a process leads, or has led. The kernel does not
// give a number away as long as it is that of a session; so if another process has it, the session is gone.
func sessionOf(leader moving.Identity) ([]moving.Identity, error) {
	if leader.PID <= 1 {
		return nil, nil
	}
	if now, err := moving.Identify(leader.PID); err == nil && now.StartTicks != leader.StartTicks {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []moving.Identity
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if session, err := unix.Getsid(pid); err != nil || session != leader.PID {
			continue
		}
		if process, err := moving.Identify(pid); err == nil && process.Alive() {
			found = append(found, process)
		}
	}
	return found, nil
}
