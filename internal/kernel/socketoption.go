package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SocketOption reads an option of a socket, and returns the length of the answer. Some options are queries:
// they read the beginning of value.
func SocketOption(fd, level, name int, value []byte) (int, error) {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return min(int(size), len(value)), nil
}
