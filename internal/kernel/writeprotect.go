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

// WriteProtect is a userfaultfd of another process that makes the kernel note, by itself and
// without stopping anybody, which pages of registered memory are written (asynchronous
// write-protection, Linux 6.7). Pagemap.Written reads and renews the notes. When the descriptor is
// closed, even by the end of this process, all of it is undone by the kernel.
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

// registerTries is how often new mappings may come between the two steps of Register.
const registerTries = 100

// Register makes the writes to a range of addresses seen, mapped ones and those between them alike.
// It begins with all pages taken for written, also of what is registered already. A range must not
// end within a mapping: that would be split in two until the rest is registered, and mremap(2) does
// not work across mappings. Errors: EBUSY when the process uses a userfaultfd there itself; EPERM
// when a shared mapping that cannot be written is there; EINVAL when nothing is; ENOMEM when the
// address space is gone, or has too many mappings.
//
// A mapping loses its registration when it is moved, or when one that was moved is joined to it
// (mm/mremap.c: mremap_userfaultfd_prep), and the marks of its pages stay (before Linux 6.14 those
// of what was moved, too). A page with such a mark that is written keeps the mark, cannot be told
// from one that was not, and is not protected again. So all marks are removed here, or the writes
// to these pages would never be seen.
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
		if errno == unix.ESRCH { // what registering says of the same
			errno = unix.ENOMEM
		}
		if errno != unix.ENOENT || tries == registerTries { // a mapping has come there between the two
			return fmt.Errorf("register memory from %#x to %#x for write-protection: %w", start, end, errno)
		}
	}
}

// Close ends all write-protection.
func (w *WriteProtect) Close() error { return unix.Close(w.fd) }
