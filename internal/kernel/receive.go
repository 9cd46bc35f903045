package kernel

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReceiveMemory returns how much kernel memory a socket's receive queue takes, and how much it may take.
func ReceiveMemory(socket int) (used, limit int, err error) {
	// The first two of SK_MEMINFO_VARS, include/uapi/linux/sock_diag.h.
	var info [2]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, 0, fmt.Errorf("read the memory of a socket: %w", errno)
	}
	return int(info[0]), int(info[1]), nil
}

// SetReceiveLimit sets how much memory the receive queue may take. If the kernel could change the limit
// before, it still can; a kernel before 5.16 cannot be told so, and keeps the limit.
func SetReceiveLimit(socket, limit int) error {
	locked, lockErr := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	// The kernel doubles what it is told, see socket(7).
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, limit/2); err != nil {
		return fmt.Errorf("set the limit of a receive queue: %w", err)
	}
	if lockErr == nil {
		lockErr = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BUF_LOCK, locked)
	}
	if lockErr != nil && !errors.Is(lockErr, unix.ENOPROTOOPT) {
		return fmt.Errorf("leave the limit of a receive queue to the kernel: %w", lockErr)
	}
	return nil
}
