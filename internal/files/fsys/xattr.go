package fsys

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// portableXattr reports whether an extended attribute belongs to the container's data, rather than to the
// file system on which it lies.
//
// Overlayfs keeps file handles and counts of the lower file system in some of its attributes. They are
// meaningless on another file system, and with index=on make the mount fail with ESTALE
// (Documentation/filesystems/overlayfs.rst, "Sharing and copying layers"). If the handle happens to
// resolve, on a clone of the file system, it even points to the wrong file. Hard links of a lower layer
// that overlayfs keeps together by its index (index=on) do not travel: the index consists of such handles,
// and engines mount with index=off. Overlayfs makes these attributes again as needed. Attributes that it
// cannot know (opaque, redirect, metacopy, protattr, whiteout) travel. security.evm, a keyed hash over the
// inode's number, does not travel either.
func portableXattr(name string) bool {
	switch name {
	case "system.posix_acl_access", "system.posix_acl_default":
		return true
	case "security.evm":
		return false
	}
	for _, prefix := range []string{"trusted.overlay.", "user.overlay."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			switch rest {
			case "origin", "impure", "nlink", "upper":
				return false
			}
			return true
		}
	}
	for _, prefix := range []string{"user.", "trusted.", "security."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false // system.nfs4_acl, btrfs.compression, ...: how this file system works
}

// ValidXattr refuses attributes that our sender never sends.
func ValidXattr(name string) error {
	if len(name) > MaxXattrName || strings.Contains(name, "\x00") || !portableXattr(name) {
		return fmt.Errorf("extended attribute %q must not be copied", name)
	}
	return nil
}

// Node is an object whose attributes are read or set: an open file, or a name in an open directory for
// objects that must not be opened (devices, FIFOs, sockets, symbolic links).
type Node struct {
	fd   int
	path string // below /proc/self/fd; empty for an open file
}

// Opened is the node of an open file or directory.
func Opened(fd int) Node { return Node{fd: fd} }

// Named reaches a name in a directory through /proc, because there are no *xattrat calls before
// Linux 6.13. The name has no slash, so the only link that the kernel follows is the descriptor's.
func Named(dirfd int, name string) Node {
	return Node{fd: -1, path: fmt.Sprintf("/proc/self/fd/%d/%s", dirfd, name)}
}

func (n Node) list(buffer []byte) (int, error) {
	if n.path == "" {
		return unix.Flistxattr(n.fd, buffer)
	}
	return unix.Llistxattr(n.path, buffer)
}

func (n Node) get(name string, buffer []byte) (int, error) {
	if n.path == "" {
		return unix.Fgetxattr(n.fd, name, buffer)
	}
	return unix.Lgetxattr(n.path, name, buffer)
}

func (n Node) set(name string, value []byte) error {
	if n.path == "" {
		return unix.Fsetxattr(n.fd, name, value, 0)
	}
	return unix.Lsetxattr(n.path, name, value, 0)
}

// Remove removes an attribute.
func (n Node) Remove(name string) error {
	if n.path == "" {
		return unix.Fremovexattr(n.fd, name)
	}
	return unix.Lremovexattr(n.path, name)
}

// XattrReader reads extended attributes into reused buffers.
type XattrReader struct {
	names  []byte
	values []byte
}

// NewXattrReader returns a reader with buffers that grow as needed.
func NewXattrReader() *XattrReader {
	return &XattrReader{names: make([]byte, 1<<10), values: make([]byte, 4<<10)}
}

// fill makes a system call that reads into a buffer. If the buffer is too small, it repeats the call with
// the largest possible one.
func fill(buffer *[]byte, read func([]byte) (int, error)) (int, error) {
	n, err := read(*buffer)
	if errors.Is(err, unix.ERANGE) && len(*buffer) < MaxXattrValue {
		*buffer = make([]byte, MaxXattrValue)
		n, err = read(*buffer)
	}
	return n, err
}

// Read returns the attributes that travel. A file system without attributes has none.
func (x *XattrReader) Read(n Node) ([]Xattr, error) {
	length, err := fill(&x.names, n.list)
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && length == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list extended attributes: %w", err)
	}
	var (
		found []Xattr
		total int
	)
	for raw := range bytes.SplitSeq(x.names[:length], []byte{0}) {
		name := string(raw)
		if name == "" || !portableXattr(name) {
			continue
		}
		size, err := fill(&x.values, func(b []byte) (int, error) { return n.get(name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("read extended attribute %q: %w", name, err)
		}
		if total += len(name) + size; total > MaxXattrBytes || len(found) >= MaxXattrs {
			return nil, fmt.Errorf("more than %d extended attributes, or %d bytes of them, cannot be copied",
				MaxXattrs, MaxXattrBytes)
		}
		found = append(found, Xattr{Name: name, Value: bytes.Clone(x.values[:size])})
	}
	return found, nil
}

// setXattrs gives a node exactly these attributes in addition to those it has.
func setXattrs(n Node, attributes []Xattr) error {
	for _, attribute := range attributes {
		if err := n.set(attribute.Name, attribute.Value); err != nil {
			return fmt.Errorf("set extended attribute %q: %w", attribute.Name, err)
		}
	}
	return nil
}
