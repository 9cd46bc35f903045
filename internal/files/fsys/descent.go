package fsys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// OpenLevels is how many directories of one descent are open at the same time. Deeper trees cost
// two more system calls for each directory left, not more descriptors.
const OpenLevels = 64

// OpenDirectoryFlags open a directory. Such an open never follows a link, never leaves the file system that
// the directory is mounted from, and does not touch access times.
const OpenDirectoryFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC |
	unix.O_NOATIME

// OpenDirectory opens a directory by one name in an open directory, and follows no link.
func OpenDirectory(parent int, name string) (int, error) {
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags: OpenDirectoryFlags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS |
			unix.RESOLVE_NO_MAGICLINKS,
	})
	if err == unix.EXDEV {
		return -1, fmt.Errorf("another file system is mounted there: %w", err)
	}
	return fd, err
}

// level is one directory on the way from the root of a tree.
type level struct {
	fd     int // -1: closed to save descriptors
	device uint64
	inode  uint64
	name   string
}

// Descent is the way from the root of a tree to one of its directories. It walks trees of any depth
// with few descriptors and no paths: names are looked up in open directories only, and a directory
// that was closed meanwhile is found again through ".." and must be the same one.
type Descent struct {
	levels []level
	lowest int // all levels from here on are open
}

// Enter goes down to a directory that is open already; the descent closes it.
func (d *Descent) Enter(fd int, name string) error {
	if len(d.levels) >= MaxDepth {
		unix.Close(fd)
		return fmt.Errorf("directories are more than %d deep", MaxDepth)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		unix.Close(fd)
		return err
	}
	d.levels = append(d.levels, level{fd: fd, device: stat.Dev, inode: stat.Ino, name: name})
	if len(d.levels)-d.lowest > OpenLevels {
		unix.Close(d.levels[d.lowest].fd)
		d.levels[d.lowest].fd = -1
		d.lowest++
	}
	return nil
}

// Depth returns how many directories are entered; the root counts.
func (d *Descent) Depth() int { return len(d.levels) }

// Fd returns the descriptor of the present directory.
func (d *Descent) Fd() int { return d.levels[len(d.levels)-1].fd }

// Name returns the name of the present directory.
func (d *Descent) Name() string {
	return d.levels[len(d.levels)-1].name
}

// Leave goes up. It reports whether the directory above had been closed, and so has lost its reading
// position.
func (d *Descent) Leave() (reopened bool, err error) {
	last := len(d.levels) - 1
	child := d.levels[last].fd
	defer unix.Close(child)
	d.levels = d.levels[:last]
	if last == 0 || d.levels[last-1].fd >= 0 {
		return false, nil
	}
	parent := &d.levels[last-1]
	fd, err := unix.Openat(child, "..", OpenDirectoryFlags, 0)
	if err != nil {
		return false, fmt.Errorf("go back to the directory above: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Dev != parent.device || stat.Ino != parent.inode {
		unix.Close(fd)
		return false, fmt.Errorf("a directory was moved while it was being read")
	}
	parent.fd = fd
	d.lowest = last - 1
	return true, nil
}

// Close gives up, wherever the descent is.
func (d *Descent) Close() {
	for i := d.lowest; i < len(d.levels); i++ {
		unix.Close(d.levels[i].fd)
	}
	d.levels, d.lowest = nil, 0
}

// Path returns, for messages, the directory's path from the root of the tree and a name in it, shortened to
// a readable length.
func (d *Descent) Path(name string) string {
	const readable = 512
	text := name
	for i := len(d.levels) - 1; i > 0; i-- {
		if len(text) > readable {
			return ".../" + text
		}
		text = d.levels[i].name + "/" + text
	}
	return text
}
