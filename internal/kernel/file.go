package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// WriteFileAtomic replaces the file at path with data, so that after a crash at any moment either the old
// or the new content is complete. When it returns, the new content and the directory entry are on disk.
func WriteFileAtomic(path string, data []byte, perm fs.FileMode) error {
	if err := writeThenRename(path, data, perm); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// CreateDurable makes an empty file that did not exist, and returns when its directory entry is on disk.
func CreateDurable(path string, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return SyncDir(filepath.Dir(path))
}

// writeThenRename writes into a file without a name, so that a process that is killed while it waits for
// the disk leaves nothing behind.
func writeThenRename(path string, data []byte, perm fs.FileMode) error {
	fresh := filepath.Join(filepath.Dir(path),
		fmt.Sprintf(".%s.new-%d-%d", filepath.Base(path), os.Getpid(), rand.Uint32()))
	f, named, err := openNew(fresh)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil && !named {
		err = link(f, fresh)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		_ = os.Remove(fresh) // the first error matters
	}
	return err
}

// unfinished matches the names of files that writeThenRename has not renamed yet, and captures the writer's
// PID.
var unfinished = regexp.MustCompile(`^\..+\.new-(\d+)-\d+$`)

// RemoveUnfinished removes the files that WriteFileAtomic has left in a directory because its process was
// killed between naming and renaming them. Files of other living processes stay. The calling process must
// not write there meanwhile: a file with its PID is taken for that of an earlier process.
func RemoveUnfinished(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var failed []error
	for _, entry := range entries {
		found := unfinished.FindStringSubmatch(entry.Name())
		if found == nil || !entry.Type().IsRegular() {
			continue
		}
		writer, err := strconv.Atoi(found[1])
		if err != nil || writer != os.Getpid() && !errors.Is(unix.Kill(writer, 0), unix.ESRCH) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// openNew makes a file without a name, or with this name if the file system cannot do that (open(2),
// O_TMPFILE).
func openNew(path string) (f *os.File, named bool, err error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return f, true, err
	}
	if err != nil {
		return nil, false, &os.PathError{Op: "make a file in", Path: filepath.Dir(path), Err: err}
	}
	return os.NewFile(uintptr(fd), path), false, nil
}

// link gives an open file its first name, in a way that needs no additional capability (linkat(2)).
func link(f *os.File, path string) error {
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, path,
		unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: "a new file", New: path, Err: err}
	}
	return nil
}

// RemoveDurable removes a file and returns when that is on disk. A missing file is no error.
func RemoveDurable(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir writes a directory's entries to disk.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	return nil
}
