package torture

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

func (w *worker) chmod() error {
	return unix.Fchmodat(unix.AT_FDCWD, w.anything(), w.random.Uint32()&0o7777|0o700, 0)
}

func (w *worker) chown() error {
	return unix.Lchown(w.anything(), w.random.IntN(3)*1000, int(w.random.Uint32()>>1))
}

func (w *worker) times() error {
	moment := func() unix.Timespec {
		return unix.Timespec{Sec: w.random.Int64N(1 << 33), Nsec: w.random.Int64N(1e9)}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, w.anything(), []unix.Timespec{moment(), moment()},
		unix.AT_SYMLINK_NOFOLLOW)
}

// capability returns cap_net_bind_service, permitted (include/uapi/linux/capability.h, revision 2).
func capability() []byte {
	value := binary.LittleEndian.AppendUint32(nil, 0x02000001)
	return append(value, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

func (w *worker) setAttribute() error {
	name, value := w.attribute()
	return unix.Lsetxattr(w.anything(), name, value, 0)
}

func (w *worker) removeAttribute() error {
	name, _ := w.attribute()
	return unix.Lremovexattr(w.anything(), name)
}

// Inode flags (include/uapi/linux/fs.h).
const (
	immutable  = 0x10
	appendOnly = 0x20
	noDump     = 0x40
)

// lock makes a file or directory immutable or append-only, which then blocks other processes.
func (w *worker) lock() error {
	kinds := []uint32{immutable, appendOnly, noDump, immutable | noDump}
	return w.flag(kinds[w.random.IntN(len(kinds))])
}

func (w *worker) unlock() error { return w.flag(0) }

func (w *worker) flag(flags uint32) error {
	if !w.Locks {
		return nil
	}
	f, err := os.OpenFile(w.anything(), unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() || info.IsDir() &&
		flags&immutable != 0 && w.random.IntN(4) > 0 {
		return err
	}
	has, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return nil // no flags on this file system
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS,
		int(has&^(immutable|appendOnly|noDump)|flags))
}
