package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// Store has the images and layers below one state directory. Its methods may be called concurrently, even
// by several processes.
type Store struct {
	places
	named    nameFile
	making   claims // of layers
	unsynced unsynced
}

// places is where the images and layers of a store are.
type places struct{ dir string }

const temporary = ".new-"

// Open opens or creates the store below a state directory, and removes leftovers of an interrupted load.
func Open(stateDir string) (*Store, error) {
	s := &Store{places: places{stateDir}, named: nameFile{filepath.Join(stateDir, "images")}}
	s.unsynced.layers = s.layersDir()
	for _, dir := range []string{s.imagesDir(), s.layersDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("image store: %w", err)
		}
	}
	release, err := s.lock(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return s, nil // somebody is loading, and owns unfinished files
	}
	if err != nil {
		return nil, err
	}
	defer release()
	for _, dir := range []string{s.imagesDir(), s.layersDir()} {
		if err := sweepTemporary(dir); err != nil {
			return nil, err
		}
	}
	return s, s.unsynced.sweep()
}

func (p places) imagesDir() string { return filepath.Join(p.dir, "images", "sha256") }
func (p places) layersDir() string { return filepath.Join(p.dir, "layers", "sha256") }

func (p places) imageDir(id string) string {
	return filepath.Join(p.imagesDir(), strings.TrimPrefix(id, "sha256:"))
}

func (p places) layerDir(diffID string) (string, error) {
	if !digestPattern.MatchString(diffID) {
		return "", fmt.Errorf("layer %.80q: a layer is named by sha256: and 64 hexadecimal digits", diffID)
	}
	return filepath.Join(p.layersDir(), strings.TrimPrefix(diffID, "sha256:")), nil
}

// lock takes the store's lock: shared to add, exclusive to remove. Each call has a lock of its own, so it
// also separates the goroutines of one process.
func (s *Store) lock(how int) (release func(), err error) {
	path := filepath.Join(s.dir, "images", "lock")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("image store: open %s: %w", path, err)
	}
	for {
		err = unix.Flock(fd, how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("image store: lock %s: %w", path, err)
	}
	return func() { _ = unix.Close(fd) }, nil
}

// Hold keeps everything in the store from being removed until it is released: long enough to check that a
// layer is here and to use it.
func (s *Store) Hold() (release func(), err error) { return s.lock(unix.LOCK_SH) }

// sweepTemporary removes unfinished layers or images.
func sweepTemporary(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("image store: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), temporary) {
			continue
		}
		if err := files.RemoveTree(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("image store: %w", err)
		}
	}
	return nil
}

// publish renames a finished directory when it is on disk.
func publish(unfinished, dir string) error {
	if err := files.Sync(unfinished); err != nil {
		return err
	}
	if err := rename(unfinished, dir); err != nil {
		return err
	}
	return kernel.SyncDir(filepath.Dir(dir))
}

// rename renames a finished directory. An existing target is success: content decides names.
func rename(unfinished, dir string) error {
	err := unix.Renameat2(unix.AT_FDCWD, unfinished, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return files.RemoveTree(unfinished)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: unfinished, New: dir, Err: err}
	}
	return nil
}

// Config returns an image's original configuration.
func (s *Store) Config(imageID string) ([]byte, error) {
	if !digestPattern.MatchString(imageID) {
		return nil, fmt.Errorf("%w: %.80q is not the ID of an image", ErrNotFound, imageID)
	}
	raw, err := os.ReadFile(filepath.Join(s.imageDir(imageID), "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, imageID)
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", imageID, err)
	}
	if digestOf(raw) != imageID {
		return nil, fmt.Errorf("image %s: its configuration on disk is damaged; remove the image and load "+
			"it again", imageID)
	}
	return raw, nil
}

// ImportConfig adds an image's configuration, which must have the given digest. The image can be used when
// its layers are here, too.
func (s *Store) ImportConfig(ctx context.Context, imageID string, config []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := Parse(imageID, config); err != nil {
		return err
	}
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	return s.addConfig(imageID, config)
}

// ImportName gives an image whose configuration was imported a name, unless another image here has it.
func (s *Store) ImportName(imageID, name string) error {
	canonical, err := canonicalName(name)
	if err != nil {
		return err
	}
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	if _, err := s.Config(imageID); err != nil {
		return err
	}
	return s.named.change(func(names map[string]string) {
		if _, taken := names[canonical]; !taken {
			names[canonical] = imageID
		}
	})
}

func (s *Store) addConfig(imageID string, config []byte) error {
	if _, err := os.Stat(s.imageDir(imageID)); err == nil {
		return nil
	}
	unfinished, err := os.MkdirTemp(s.imagesDir(), temporary)
	if err == nil {
		err = kernel.WriteFileAtomic(filepath.Join(unfinished, "config.json"), config, 0o600)
	}
	if err == nil {
		err = publish(unfinished, s.imageDir(imageID))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("add image %s: %w", imageID, err), files.RemoveTree(unfinished))
	}
	return nil
}
