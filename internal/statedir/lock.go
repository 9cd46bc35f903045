package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockName is the file in each of the two directories on which the lock is taken.
const lockName = "agent.lock"

// patience is how long a killed process may still hold a lock: the kernel takes a while to end a process. A
// lock that is held longer has a live owner.
var patience = 3 * time.Second

// pollEvery is the interval between attempts to take a held lock.
const pollEvery = 50 * time.Millisecond

// maxHolder bounds the bytes read from a lock file.
const maxHolder = 1 << 10

// ErrLocked means that another process has the directory.
var ErrLocked = errors.New("another agent has this directory")

// holder is the owner's note in a lock file, for people.
type holder struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
}

// lock is a flock(2) on a file. It ends with the process, or with the file: the descriptor is closed on
// exec, so no child has it.
type lock struct{ file *os.File }

// take waits at most for patience. If another process has the directory, take changes nothing in it.
func take(dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // with O_CLOEXEC, as os does
	if err != nil {
		return nil, fmt.Errorf("lock of %s: %w", dir, err)
	}
	for until := time.Now().Add(patience); ; time.Sleep(pollEvery) {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: %s is locked by %s: end it first, or give this agent directories of its own "+
			"(--state, --run)",
			ErrLocked, dir, readHolder(file))
	} else if err != nil {
		err = fmt.Errorf("lock %s: %w", path, err)
	}
	if err == nil {
		err = writeHolder(file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &lock{file}, nil
}

func (l *lock) release() error { return l.file.Close() }

func writeHolder(file *os.File) error {
	text, err := json.Marshal(holder{PID: os.Getpid(), Since: time.Now().UTC().Truncate(time.Second)})
	if err == nil {
		err = file.Truncate(0)
	}
	if err == nil {
		_, err = file.WriteAt(append(text, '\n'), 0)
	}
	if full(err) {
		return nil // only the lock counts, and an agent must start on a full disk, too
	}
	if err != nil {
		return fmt.Errorf("note who has the lock: %w", err)
	}
	return nil
}

func readHolder(file io.ReaderAt) string {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, maxHolder))
	if err != nil {
		return "another process"
	}
	return describeHolder(text)
}

// describeHolder formats the content of a lock file. Its owner may just be writing it.
func describeHolder(text []byte) string {
	var h holder
	if json.Unmarshal(text, &h) != nil || h.PID <= 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d since %s", h.PID, h.Since.UTC().Format(time.RFC3339))
}
