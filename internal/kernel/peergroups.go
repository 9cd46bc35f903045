package kernel

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups is the kernel's NGROUPS_MAX (include/uapi/linux/limits.h).
const maxGroups = 65536

// PeerGroups returns the supplementary groups that the process at the other end of a unix socket had when
// it connected (SO_PEERGROUPS, Linux 4.13, net/core/sock.c).
func PeerGroups(socket int) ([]uint32, error) {
	for room := uint32(32); ; {
		groups := make([]uint32, room)
		size := room * uint32(unsafe.Sizeof(groups[0]))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET,
			unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		needed := size / uint32(unsafe.Sizeof(groups[0]))
		switch {
		case errno == 0 && needed <= room:
			return groups[:needed], nil
		case errors.Is(errno, unix.ERANGE) && needed > room && needed <= maxGroups:
			room = needed
		default:
			return nil, fmt.Errorf("groups of the process at the other end of a socket: %w", errno)
		}
	}
}
