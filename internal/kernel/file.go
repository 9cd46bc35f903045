package kernel

import (
	"errors"
	"io/fs"
)

// WriteFileAtomic replaces the file at path with data so that after a crash at any instant either the old or the new
// content is there, whole. When it returns the new content is on disk, and so is the directory entry.
func WriteFileAtomic(path string, data []byte, perm fs.FileMode) error { return errors.ErrUnsupported }

// RemoveDurable removes a file and returns when its absence is on disk. It is no error if it is not there.
func RemoveDurable(path string) error { return errors.ErrUnsupported }

// SyncDir writes a directory's entries to disk.
func SyncDir(path string) error { return errors.ErrUnsupported }
