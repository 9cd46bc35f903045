package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// nameFile has the names of images, and their IDs.
type nameFile struct{ dir string }

// read returns the IDs by canonical name.
func (n nameFile) read() (map[string]string, error) {
	raw, err := os.ReadFile(filepath.Join(n.dir, "names.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("names of images: %w", err)
	}
	names := map[string]string{}
	if err := json.Unmarshal(raw, &names); err != nil {
		return nil, fmt.Errorf("names of images: %s/names.json is damaged: %w", n.dir, err)
	}
	return names, nil
}

// change changes the names. They have a separate lock, which nobody holds for long.
func (n nameFile) change(change func(map[string]string)) error {
	path := filepath.Join(n.dir, "names.json")
	fd, err := unix.Open(filepath.Join(n.dir, "names.lock"), unix.O_RDWR|unix.O_CREAT|
		unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("names of images: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		return fmt.Errorf("names of images: lock: %w", err)
	}
	names, err := n.read()
	if err != nil {
		return err
	}
	change(names)
	raw, err := json.MarshalIndent(names, "", "  ")
	if err != nil {
		return fmt.Errorf("names of images: %w", err)
	}
	return kernel.WriteFileAtomic(path, append(raw, '\n'), 0o600)
}
