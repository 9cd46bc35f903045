package embedded

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// directoryRecord describes an existing directory that an arrival changes.
type directoryRecord struct {
	Mode     uint32    `json:"mode"`
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	Modified time.Time `json:"modified"`
	// Inode and Born identify the directory: something else may be mounted there when the arrival is
	// undone.
	Inode uint64    `json:"inode,omitempty"`
	Born  time.Time `json:"born,omitzero"`
}

// recordDirectory records what exists before an arrival.
func recordDirectory(path string) (*directoryRecord, error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|
		unix.STATX_BTIME, &stat); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	r := &directoryRecord{
		Mode: uint32(stat.Mode) & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid), Inode: stat.Ino,
		Modified: time.Unix(stat.Mtime.Sec, int64(stat.Mtime.Nsec)),
	}
	if stat.Mask&unix.STATX_BTIME != 0 {
		r.Born = time.Unix(stat.Btime.Sec, int64(stat.Btime.Nsec)).UTC()
	}
	return r, nil
}

// still reports whether a path leads to the same directory as before.
func (r *directoryRecord) still(path string) bool {
	now, err := recordDirectory(path)
	return err == nil && (r.Inode == 0 || r.Inode == now.Inode && r.Born.Equal(now.Born))
}

func (r *directoryRecord) restore(path string) error {
	err := errors.Join(os.Lchown(path, r.UID, r.GID), unix.Chmod(path, r.Mode),
		os.Chtimes(path, time.Time{}, r.Modified))
	if err != nil {
		return fmt.Errorf("put back what the directory of a volume was: %w", err)
	}
	return nil
}

// madeVolume is a directory that an arrival fills.
type madeVolume struct {
	Path string `json:"path"`
	// Was describes the directory before, when it was empty; nil: it did not exist.
	Was *directoryRecord `json:"was,omitempty"`
	// Above are the directories above it that did not exist, the lowest first.
	Above []string `json:"above,omitempty"`
}

// makeArriving makes the directories that an arrival fills.
func makeArriving(made []madeVolume) error {
	for _, m := range made {
		if err := os.MkdirAll(m.Path, 0o755); err != nil {
			return fmt.Errorf("make directory of a volume: %w", err)
		}
	}
	return nil
}

// fills reports whether a directory's contents have come with the arrival.
func (m *madeVolume) fills() bool { return m.Was == nil || m.Was.still(m.Path) }
