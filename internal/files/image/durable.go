package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// unsyncedName is a file in the directory of a layer that may not be on the disk yet. It has the id
// of the machine's boot in which the layer was made: in any other one nobody knows how much of it
// is there.
const unsyncedName = "unsynced"

// publishSoon gives a finished layer its name at once, and has it brought to the disk behind the
// caller's back: the disk is often slower than what a layer comes over, and the next one can come
// meanwhile.
func (s *Store) publishSoon(unfinished, dir string) error {
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
	s.syncSoon(dir)
	return nil
}

// syncSoon brings a layer to the disk, after those that others bring there now.
func (s *Store) syncSoon(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, dir)
	if !s.syncing {
		s.syncing = true
		go s.syncPending()
	}
}

// syncPending brings layers to the disk until all are there. One that fails stays marked, and the
// next Open decides.
func (s *Store) syncPending() {
	for {
		s.mu.Lock()
		dirs := s.pending
		s.pending = nil
		s.syncing = len(dirs) > 0
		s.mu.Unlock()
		if len(dirs) == 0 {
			return
		}
		if files.Sync(s.layersDir()) != nil {
			continue
		}
		for _, dir := range dirs {
			_ = os.Remove(filepath.Join(dir, unsyncedName)) // It may have been removed whole.
		}
	}
}

// Sync brings all layers that are here to the disk, and has them known to be there: whatever
// happens to the machine after that, they stay. Removing a mark is not on the disk by itself.
func (s *Store) Sync() error {
	// a layer that comes later may be on its way
	marks, err := filepath.Glob(filepath.Join(s.layersDir(), "*", unsyncedName))
	if err == nil {
		err = files.Sync(s.layersDir())
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

// removeMark removes a mark for good, unless its layer has been removed whole.
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

// sweepUnsynced removes layers of which the machine's end may have left a part only. Those that an
// agent left which was ended are whole: the kernel has them.
func (s *Store) sweepUnsynced() error {
	entries, err := os.ReadDir(s.layersDir())
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
		dir := filepath.Join(s.layersDir(), entry.Name())
		made, err := os.ReadFile(filepath.Join(dir, unsyncedName))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && string(made) == boot:
			s.syncSoon(dir)
			continue
		case err == nil:
			err = s.discard(dir)
		}
		if err != nil {
			return fmt.Errorf("image store: %w", err)
		}
	}
	return nil
}
