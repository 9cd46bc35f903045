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

// endSession kills a container's monitor and what it started that still runs in its session: runc,
// the restore proxy and CRIU, not the container, whose processes have sessions of their own. It
// returns when all are gone.
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

// monitorProcess is a container's monitor, or was; zero: there is none. What the monitor recorded
// is gone if somebody has emptied the run directory, and after a boot.
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
		if err != nil || session != pid { // it has just ended, or is on its way to become runc
			continue
		}
		if process, err := checkpoint.Identify(pid); err == nil {
			return process, nil
		}
	}
	return checkpoint.Identity{}, nil
}

// sessionOf lists the processes that are alive in the session that a process leads, or has led. The
// kernel does not give a number away as long as it is that of a session; so if another process has
// it, the session is gone.
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
