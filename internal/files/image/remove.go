package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
)

// Remove removes the target of ref. If the image has other names, only the name goes. Otherwise the image
// goes, unless inUse reports that its ID is in use, and with it all layers that no other image has.
func (s *Store) Remove(ctx context.Context, ref string, inUse func(imageID string) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	release, err := s.lock(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("remove %s: %w or moved; try again when that is done", ref, ErrBusy)
	}
	if err != nil {
		return err
	}
	defer release()
	names, err := s.named.read()
	if err != nil {
		return err
	}
	id, err := s.find(ref, names)
	if err != nil {
		return err
	}
	if name, others := named(ref, id, names); name != "" && others {
		return s.named.change(func(names map[string]string) { delete(names, name) })
	}
	if inUse != nil && inUse(id) {
		return fmt.Errorf("%w: a container was made from %s; remove the container first", ErrInUse, ref)
	}
	if err := s.named.change(func(names map[string]string) {
		for name, named := range names {
			if named == id {
				delete(names, name)
			}
		}
	}); err != nil {
		return err
	}
	if err := discard(s.imageDir(id)); err != nil {
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
	return s.sweepLayers()
}

// named returns the stored name by which a reference means an image, and whether the image has other names.
func named(ref, id string, names map[string]string) (name string, others bool) {
	for _, candidate := range candidates(ref) {
		if names[candidate] == id && name == "" {
			name = candidate
		}
	}
	for other, of := range names {
		others = others || of == id && other != name
	}
	return name, others
}

// discard makes a directory disappear at once, and then removes it. After an interruption, Open removes it.
func discard(dir string) error {
	hidden, err := os.MkdirTemp(filepath.Dir(dir), temporary)
	if err != nil {
		return err
	}
	if err := os.Rename(dir, filepath.Join(hidden, "removed")); err != nil {
		return errors.Join(err, os.Remove(hidden))
	}
	return files.RemoveTree(hidden)
}

// sweepLayers removes the layers that no image has, complete or not. The store must be locked for removing.
func (s *Store) sweepLayers() error {
	ids, err := s.ids()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, id := range ids {
		image, _, err := s.image(id, nil)
		if err != nil {
			return fmt.Errorf("find layers that are not needed: %w", err)
		}
		for _, diffID := range image.Layers {
			wanted[diffID] = true
		}
	}
	entries, err := os.ReadDir(s.layersDir())
	if err != nil {
		return fmt.Errorf("find layers that are not needed: %w", err)
	}
	for _, entry := range entries {
		diffID := "sha256:" + entry.Name()
		if !digestPattern.MatchString(diffID) || wanted[diffID] {
			continue
		}
		dir, err := s.layerDir(diffID)
		if err == nil {
			err = discard(dir)
		}
		if err != nil {
			return fmt.Errorf("remove layer %s: %w", diffID, err)
		}
	}
	return nil
}
