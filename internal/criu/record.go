package criu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// A record is the durable statement that a restored container was allowed to run. The restore proxy makes
// it, not the agent, because the proxy is the last process that can hold the container back. While it
// lives, the proxy holds a lock on the file RECORD.lock. So a restarted agent can wait for the proxy's end
// before it believes that there is no record.

const lockSuffix = ".lock"

// makeRecord makes the record. An empty file fits on a full disk; only its existence counts.
func makeRecord(path string) error { return kernel.CreateDurable(path, 0o600) }

// lockRecord takes the lock for the rest of the process's life. It fails if there is already a record: a
// restore may run only once.
func lockRecord(path string) (*os.File, error) {
	f, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &whole); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: another proxy uses it: %w", f.Name(), err), f.Close())
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("record %s exists: this restore was allowed to run before", path),
			f.Close())
	}
	return f, nil
}

// Ran reports whether the proxy with this record file let its container run. If the proxy still lives, Ran
// waits for its end (a proxy whose agent is gone ends at once). When ctx ends first, Ran kills the proxy,
// on which CRIU fails. It does not kill a proxy that has made the record: its container runs, and would be
// killed with it. So the answer false is final. The caller removes processes that a killed restore may
// leave (cgroup.Cgroup.Kill).
func Ran(ctx context.Context, record string) (bool, error) {
	if err := endProxy(ctx, record); err != nil {
		return false, fmt.Errorf("wait for the restore proxy to end: %w", err)
	}
	_, err := os.Stat(record)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether the container was resumed: %w", err)
	}
	return true, nil
}

// endProxy returns when no proxy holds the lock. A proxy that starts later finds the lock taken or finds no
// agent; in neither case does it let anything run.
func endProxy(ctx context.Context, record string) error {
	f, err := os.OpenFile(record+lockSuffix, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no proxy was ever started
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		holder := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &holder); err != nil {
			return err
		}
		if holder.Type == unix.F_UNLCK {
			return nil
		}
		if ctx.Err() != nil {
			if _, err := os.Stat(record); err == nil {
				return awaitAllowed(f)
			}
			if err := killHolder(f, int(holder.Pid)); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// allowedPatience is how long a proxy that has let its container run may take to end, or to withdraw the
// record because CRIU failed after all.
const allowedPatience = 30 * time.Second

// awaitAllowed waits for the end of a proxy that has made its record. After a long time, the record counts.
func awaitAllowed(lock *os.File) error {
	for end := time.Now().Add(allowedPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		holder := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(lock.Fd(), unix.F_GETLK, &holder); err != nil {
			return err
		}
		if holder.Type == unix.F_UNLCK {
			return nil
		}
	}
	return nil
}

// killHolder kills the process that holds the lock, if it still holds the lock once its pidfd is open: so
// its PID cannot have been reused.
func killHolder(f *os.File, pid int) error {
	pidfd, err := kernel.PidfdOpen(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	holder := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &holder); err != nil {
		return err
	}
	if holder.Type == unix.F_UNLCK || int(holder.Pid) != pid {
		return nil
	}
	return kernel.PidfdKill(pidfd)
}
