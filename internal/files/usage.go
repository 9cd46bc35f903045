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

// Usage counts the disk space of a copy, whatever uses it: removed files no longer count.
type Usage struct {
	Limits  Limits
	Bytes   int64 // of files, without holes
	Entries int64
}

// Names counts names that are about to be made, or were removed.
func (u *Usage) Names(n int64) error {
	u.Entries += n
	if n > 0 && u.Limits.Entries > 0 && u.Entries > u.Limits.Entries {
		return fmt.Errorf("the file stream makes more than the %d files that were agreed on; if the "+
			"container has created so many since, begin again", u.Limits.Entries)
	}
	return nil
}

// Room reports whether there is room for more bytes.
func (u *Usage) Room(more int64) bool {
	return u.Limits.Bytes <= 0 || u.Bytes+more <= u.Limits.Bytes
}

// Full returns the error for no room.
func (u *Usage) Full() error {
	return fmt.Errorf("the file stream takes more than the %d bytes that were agreed on; if they have "+
		"grown so much since, begin again", u.Limits.Bytes)
}

// Gone counts a removed name, by the object that it stood for.
func (u *Usage) Gone(stat *unix.Stat_t) {
	u.Entries--
	if stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Nlink <= 1 {
		u.Bytes = max(0, u.Bytes-Occupied(stat))
	}
}

// Occupied returns a file's space as TreeSize counts it: without holes and without the rest of its last
// block. Stat always counts in units of 512 bytes.
func Occupied(stat *unix.Stat_t) int64 { return min(stat.Size, stat.Blocks*512) }
