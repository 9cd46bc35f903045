package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// endSession kills a container's monitor and the processes of its session: runc, the restore proxy and
// CRIU. It does not kill the container, whose processes have sessions of their own. It returns when all are
// gone.
func endSession(ctx context.Context, place container) error {
	const pause = 2 * time.Millisecond
	monitor, err := monitorProcess(place)
	if err != nil {
		return err
	}
	for {
		left, err := sessionOf(monitor)
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

// monitorProcess returns the present or former monitor of a container; zero: there is none. The monitor's
// own record is gone if somebody has emptied the run directory, and after a boot.
func monitorProcess(place container) (checkpoint.Identity, error) {
	var last liveState
	err := durable.Load(place.runtime(), &last)
	if errors.Is(err, fs.ErrNotExist) {
		return findMonitor(place)
	}
	return last.Monitor, err
}

// findMonitor finds a container's monitor by its command line.
func findMonitor(place container) (checkpoint.Identity, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return checkpoint.Identity{}, fmt.Errorf("list processes: %w", err)
	}
	command := "\x00" + MonitorCommand + "\x00" + place.job() + "\x00"
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || !strings.HasSuffix(string(line), command) {
			continue
		}
		session, err := unix.Getsid(pid)
		if err != nil || session != pid { // it has just ended, or is about to become runc
			continue
		}
		if process, err := checkpoint.Identify(pid); err == nil {
			return process, nil
		}
	}
	return checkpoint.Identity{}, nil
}

// sessionOf lists the living processes of the session that a process leads, or has led. The kernel does not
// reuse a number while it is a session's. So if another process has the number, the session is gone.
func sessionOf(leader checkpoint.Identity) ([]checkpoint.Identity, error) {
	if leader.PID <= 1 {
		return nil, nil
	}
	if now, err := checkpoint.Identify(leader.PID); err == nil && now.StartTicks != leader.StartTicks {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []checkpoint.Identity
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if session, err := unix.Getsid(pid); err != nil || session != leader.PID {
			continue
		}
		if process, err := checkpoint.Identify(pid); err == nil && process.Alive() {
			found = append(found, process)
		}
	}
	return found, nil
}
