package fsys

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Entry is everything about one name in a directory but the content of a regular file: what a manifest lists.
type Entry struct {
	Name     string // in its directory; empty for the root of a tree; any bytes but '/' and NUL
	Mode     uint32 // type and permissions, as st_mode
	UID      uint32
	GID      uint32
	Size     int64  // regular file: apparent size in bytes
	Stored   int64  // regular file: bytes that it takes on the source's file system
	Device   uint64 // device node: its number as st_rdev; 0 with a character device is an overlay whiteout
	Target   string // symbolic link: where it points
	Accessed Timestamp
	Modified Timestamp
	Flags    uint32 // inode flags (FS_*_FL), those in PortableFlags only
	Links    uint64 // number given to an inode that has several names; 0 if it has one
	Xattrs   []Xattr
}

// Timestamp is a time of a file, in full.
type Timestamp struct {
	Seconds     int64
	Nanoseconds uint32
}

// Xattr is an extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// Type is the entry's file type (unix.S_IFREG and so on).
func (e *Entry) Type() uint32 { return e.Mode & unix.S_IFMT }

// Bounds of what one entry may hold. The first four are the kernel's own (limits.h, NAME_MAX,
// PATH_MAX, XATTR_*); MaxXattrs follows from the 64 KiB that listxattr(2) can return.
const (
	MaxName       = 255
	MaxTarget     = 4095
	MaxXattrName  = 255
	MaxXattrValue = 64 << 10
	MaxXattrs     = 4096
	MaxXattrBytes = 16 << 20
	MaxDepth      = 100_000
	MaxTrees      = 4096
)

// Inode flags as in include/uapi/linux/fs.h, which x/sys/unix does not have. Others say how a file
// system stores a file (extents, compression, ...) and mean nothing elsewhere.
const (
	flagSync      = 0x00000008
	FlagImmutable = 0x00000010
	FlagAppend    = 0x00000020
	FlagNoDump    = 0x00000040
	FlagNoAtime   = 0x00000080
	flagDirSync   = 0x00010000

	lockingFlags  = FlagImmutable | FlagAppend
	PortableFlags = flagSync | FlagImmutable | FlagAppend | FlagNoDump | FlagNoAtime | flagDirSync
)

// ValidName reports whether a name that came from elsewhere names an entry of a directory and nothing else.
func ValidName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%q is not a file name", name)
	case len(name) > MaxName:
		return fmt.Errorf("file name of %d bytes; at most %d are allowed", len(name), MaxName)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("file name %q contains a slash or a NUL", name)
	}
	return nil
}

// Validate refuses what no file system can hold, or what must not be made from a stream.
func (e *Entry) Validate() error {
	if e.Mode&^uint32(unix.S_IFMT|0o7777) != 0 {
		return fmt.Errorf("mode %#o is not a file mode", e.Mode)
	}
	if e.Accessed.Nanoseconds >= 1e9 || e.Modified.Nanoseconds >= 1e9 {
		return fmt.Errorf("a time has more nanoseconds than a second")
	}
	if e.Flags&^uint32(PortableFlags) != 0 {
		return fmt.Errorf("inode flags %#x are not among those that can be copied", e.Flags)
	}
	if e.Size < 0 || e.Stored < 0 {
		return fmt.Errorf("negative size")
	}
	return e.validateType()
}

func (e *Entry) validateType() error {
	switch e.Type() {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFIFO, unix.S_IFSOCK:
	case unix.S_IFLNK:
		if e.Target == "" || strings.Contains(e.Target, "\x00") {
			return fmt.Errorf("symbolic link with an impossible target %q", e.Target)
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		if e.Device > 1<<32-1 {
			return fmt.Errorf("device number %#x is too large", e.Device)
		}
	default:
		return fmt.Errorf("unknown file type %#o", e.Type())
	}
	return nil
}
