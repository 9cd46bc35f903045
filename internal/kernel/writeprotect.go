package kernel

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of include/uapi/linux/userfaultfd.h.
const (
	ioctlUffdRegister     = 0xC020AA00 // _IOWR(0xAA, 0x00, struct uffdio_register)
	ioctlUffdWriteProtect = 0xC018AA06 // _IOWR(0xAA, 0x06, struct uffdio_writeprotect)

	uffdRegisterWP = 1 << 1
)

// WriteProtect is a userfaultfd of another process that makes the kernel record, without stopping any
// process, which pages of registered memory are written (asynchronous write-protection, Linux 6.7).
// Pagemap.Written reads and renews the records. When the descriptor is closed, even by the end of this
// process, the kernel undoes all of it.
type WriteProtect struct {
	fd int
}

// NewWriteProtect takes over a new userfaultfd.
func NewWriteProtect(fd int) (*WriteProtect, error) {
	api := struct{ api, features, ioctls uint64 }{api: uffdAPI, features: uffdWPAsync | uffdWPUnpopulated}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlUffdAPI,
		uintptr(unsafe.Pointer(&api))); errno != 0 {
		_ = unix.Close(fd) // it was never used
		return nil, fmt.Errorf("userfaultfd: asynchronous write-protection: %w", errno)
	}
	return &WriteProtect{fd: fd}, nil
}

// registerTries is how often new mappings may appear between the two steps of Register.
const registerTries = 100

// Register makes writes to a range of addresses visible, in mapped parts and in the gaps between them. At
// first all pages count as written, including those already registered. A range must not end within a
// mapping: that would be split in two until the rest is registered, and mremap(2) does not work across
// mappings. Errors: EBUSY when the process itself uses a userfaultfd in the range; EPERM when there is a
// shared mapping that cannot be written; EINVAL when nothing is mapped; ENOMEM when the address space is
// gone, or has too many mappings.
//
// A mapping loses its registration when it is moved, or when a moved mapping is joined to it (mm/mremap.c:
// mremap_userfaultfd_prep). The marks of its pages stay (before Linux 6.14 also those of the moved
// mapping). A page with such a mark keeps the mark when it is written, cannot be distinguished from an
// unwritten page, and is not protected again. So Register removes all marks, or writes to these pages would
// never be seen.
func (w *WriteProtect) Register(start, end uint64) error {
	for tries := 1; ; tries++ {
		register := struct{ start, length, mode, ioctls uint64 }{start, end - start, uffdRegisterWP, 0}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), ioctlUffdRegister,
			uintptr(unsafe.Pointer(&register)))
		if errno == 0 {
			unmark := struct{ start, length, mode uint64 }{start, end - start, 0}
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), ioctlUffdWriteProtect,
				uintptr(unsafe.Pointer(&unmark)))
		}
		if errno == 0 {
			return nil
		}
		if errno == unix.ESRCH { // as registering returns for this
			errno = unix.ENOMEM
		}
		if errno != unix.ENOENT || tries == registerTries { // a mapping has appeared between the two
			return fmt.Errorf("register memory from %#x to %#x for write-protection: %w", start, end, errno)
		}
	}
}

// Close ends all write-protection.
func (w *WriteProtect) Close() error { return unix.Close(w.fd) }
