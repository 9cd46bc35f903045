// Package durable keeps small JSON records in files that survive a crash: a file is replaced as a whole,
// and read with a bound. The package does not know the records' contents.
package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/kernel"
)

// maxBytes bounds a record: the largest records contain a container's whole configuration.
const maxBytes = 4 << 20

// Save replaces a file so that a crash leaves the old or the new content.
func Save(path string, value any) error {
	data, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := kernel.WriteFileAtomic(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}

// Load reads a file that Save wrote. A missing file is fs.ErrNotExist.
func Load(path string, value any) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxBytes {
		return fmt.Errorf("read %s: larger than %d bytes", path, maxBytes)
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// LoadEach reads the file of this name in each directory within one, and skips directories without it. With
// an error, it returns the records that could be read.
func LoadEach[T any](within, name string) (all []T, failed error) {
	entries, err := os.ReadDir(within)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		failed = err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		var one T
		if err := Load(filepath.Join(within, entry.Name(), name), &one); err == nil {
			all = append(all, one)
		} else if !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return all, failed
}

// Exists reports whether a path exists. If that is not known, it counts as existing.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Remove removes a file that may not exist.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
