package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// unsyncedName is a file in the directory of a layer that may not be on disk yet. It contains the ID of the
// machine's boot in which the layer was made: after another boot nobody knows how much of the layer exists.
const unsyncedName = "unsynced"

// unsynced are the layers that may not be on disk yet.
type unsynced struct {
	layers string // directory

	mu      sync.Mutex
	pending []string // directories of layers that may not be on disk yet
	syncing bool     // a goroutine is syncing them
}

// publish renames a finished layer at once, and writes it to disk in the background: the disk is often
// slower than the network, and the next layer can come meanwhile.
func (u *unsynced) publish(unfinished, dir string) error {
	boot, err := kernel.BootID()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(unfinished, unsyncedName), []byte(boot), 0o600); err != nil {
		return err
	}
	if err := rename(unfinished, dir); err != nil {
		return err
	}
	u.add(dir)
	return nil
}

// add writes a layer to disk, after those that are being written now.
func (u *unsynced) add(dir string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pending = append(u.pending, dir)
	if !u.syncing {
		u.syncing = true
		go u.run()
	}
}

// run writes layers to disk until all are there. If one fails, it stays marked, and the next Open
// decides.
func (u *unsynced) run() {
	for {
		u.mu.Lock()
		dirs := u.pending
		u.pending = nil
		u.syncing = len(dirs) > 0
		u.mu.Unlock()
		if len(dirs) == 0 {
			return
		}
		if files.Sync(u.layers) != nil {
			continue
		}
		for _, dir := range dirs {
			_ = os.Remove(filepath.Join(dir, unsyncedName)) // It may have been removed whole.
		}
	}
}

// Sync writes all present layers to disk, and removes their marks: they survive whatever happens to the
// machine after that. Removing a mark is not durable by itself.
func (s *Store) Sync() error { return s.unsynced.sync() }

func (u *unsynced) sync() error {
	// a layer that comes later may be on its way
	marks, err := filepath.Glob(filepath.Join(u.layers, "*", unsyncedName))
	if err == nil {
		err = files.Sync(u.layers)
	}
	for _, mark := range marks {
		if err == nil {
			err = removeMark(mark)
		}
	}
	if err != nil {
		return fmt.Errorf("bring image layers to the disk: %w", err)
	}
	return nil
}

// removeMark durably removes a mark, unless its layer was removed as a whole.
func removeMark(mark string) error {
	err := os.Remove(mark)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = kernel.SyncDir(filepath.Dir(mark))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes layers that may be incomplete because the machine stopped. Layers left by an agent
// that ended are complete: the kernel has them.
func (u *unsynced) sweep() error {
	entries, err := os.ReadDir(u.layers)
	if err != nil {
		return fmt.Errorf("image store: %w", err)
	}
	entries = slices.DeleteFunc(entries,
		func(entry fs.DirEntry) bool { return strings.HasPrefix(entry.Name(), temporary) })
	boot, err := kernel.BootID()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		dir := filepath.Join(u.layers, entry.Name())
		made, err := os.ReadFile(filepath.Join(dir, unsyncedName))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && string(made) == boot:
			u.add(dir)
			continue
		case err == nil:
			err = discard(dir)
		}
		if err != nil {
			return fmt.Errorf("image store: %w", err)
		}
	}
	return nil
}
