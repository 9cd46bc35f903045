package embedded

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
)

const (
	roomName  = ".room" // beside the containers' directories
	roomBytes = 64 << 10
	noteBytes = 4 << 10 // size of a note
)

// room is space on the disk, reserved while there is plenty, for notes that must be made even on a full
// disk: that a container leaves a node whose disk it has filled, or that somebody has stopped it.
type room struct {
	path string
	mu   sync.Mutex
}

// save is durable.Save, which uses the room on a full disk. It reserves the rest of the room again at once.
func (r *room) save(path string, value any) error {
	err := durable.Save(path, value)
	if !full(err) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if os.Remove(r.path) != nil {
		return err
	}
	err = durable.Save(path, value)
	_ = r.take() // KeepNotes retries
	return err
}

// keep reserves the room unless it is reserved.
func (r *room) keep() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.take()
}

// take reserves as much of the room as possible. The caller has locked mu.
func (r *room) take() error {
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("room for notes: %w", err)
	}
	for size := int64(roomBytes); size >= noteBytes; size /= 2 {
		err = unix.Fallocate(int(file.Fd()), 0, 0, size)
		if errors.Is(err, unix.EOPNOTSUPP) {
			_, err = file.WriteAt(make([]byte, size), 0)
		}
		if !full(err) {
			break
		}
	}
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("room for notes, %d KiB at %s: %w", roomBytes>>10, r.path, err)
	}
	return nil
}

// full reports whether an error is that of a full disk.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
