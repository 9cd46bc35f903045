package files

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Limits bound the disk space of a copy; zero means no limit.
type Limits struct {
	Bytes   int64 // of regular files, without holes
	Entries int64 // names, one for each hard link
}

// usage counts the disk space of a copy, whatever uses it: removed files no longer count.
type usage struct {
	limits  Limits
	bytes   int64 // of files, without holes
	entries int64
}

// names counts names that are about to be made, or were removed.
func (u *usage) names(n int64) error {
	u.entries += n
	if n > 0 && u.limits.Entries > 0 && u.entries > u.limits.Entries {
		return fmt.Errorf("the file stream makes more than the %d files that were agreed on; if the "+
			"container has created so many since, begin again", u.limits.Entries)
	}
	return nil
}

// room reports whether there is room for more bytes.
func (u *usage) room(more int64) bool {
	return u.limits.Bytes <= 0 || u.bytes+more <= u.limits.Bytes
}

// full returns the error for no room.
func (u *usage) full() error {
	return fmt.Errorf("the file stream takes more than the %d bytes that were agreed on; if they have "+
		"grown so much since, begin again", u.limits.Bytes)
}

// gone counts a removed name, by the object that it stood for.
func (u *usage) gone(stat *unix.Stat_t) {
	u.entries--
	if stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Nlink <= 1 {
		u.bytes = max(0, u.bytes-occupied(stat))
	}
}

// occupied returns a file's space as TreeSize counts it: without holes and without the rest of its last
// block. Stat always counts in units of 512 bytes.
func occupied(stat *unix.Stat_t) int64 { return min(stat.Size, stat.Blocks*512) }
