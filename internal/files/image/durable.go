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

// unsyncedName is a file in the directory of a layer that may not be on disk yet. It contains the ID of the
// machine's boot in which the layer was made: after another boot nobody knows how much of the layer exists.
const unsyncedName = "unsynced"

// publishSoon renames a finished layer at once, and writes it to disk in the background: the disk is often
// slower than the network, and the next layer can come meanwhile.
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

// syncSoon writes a layer to disk, after those that are being written now.
func (s *Store) syncSoon(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, dir)
	if !s.syncing {
		s.syncing = true
		go s.syncPending()
	}
}

// syncPending writes layers to disk until all are there. If one fails, it stays marked, and the next Open
// decides.
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

// Sync writes all present layers to disk, and removes their marks: they survive whatever happens to the
// machine after that. Removing a mark is not durable by itself.
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

// sweepUnsynced removes layers that may be incomplete because the machine stopped. Layers left by an agent
// that ended are complete: the kernel has them.
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
