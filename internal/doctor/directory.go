package doctor

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// workplace is the directory of one trial. It is in the node's state directory because /run and /tmp are
// often mounted so that nothing in them can be executed. Each state directory has at most one at a time:
// existing files were left by a trial that was killed.
type workplace struct {
	directory string
	container string // name of the container and of its cgroup
	lock      *os.File
}

// openWorkplace waits until no other trial uses the state directory.
func openWorkplace(ctx context.Context, state string) (*workplace, error) {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	// The directory is its own lock, so that nothing has to be left in it.
	file, err := os.Open(state)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	if err := lock(ctx, file); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for another trial on this machine: %w", err), file.Close())
	}
	return &workplace{directory: filepath.Join(state, "doctor"), container: containerOf(state), lock: file},
		nil
}

// containerOf returns the name of the container of trials in a state directory. It is the same each time,
// so that leftovers can be found, and differs between the nodes that share a machine.
func containerOf(state string) string {
	hash := fnv.New32a()
	hash.Write([]byte(state))
	return fmt.Sprintf("godwit-doctor-%08x", hash.Sum32())
}

// lock waits for the lock, which is released when the file is closed or this process ends.
func lock(ctx context.Context, file *os.File) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// make makes the directory anew.
func (w *workplace) make() error {
	if err := os.RemoveAll(w.directory); err != nil {
		return fmt.Errorf("remove what an earlier trial left: %w", err)
	}
	if err := os.Mkdir(w.directory, 0o700); err != nil {
		return fmt.Errorf("make a directory for the trial: %w", err)
	}
	return nil
}

// close removes the directory and lets the next trial start.
func (w *workplace) close() error {
	return errors.Join(os.RemoveAll(w.directory), w.lock.Close())
}
