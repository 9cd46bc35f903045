package kernel

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SyncSegmentSize makes the kernel compute the segment size of a TCP connection again. A socket that is
// connected in repair mode, as by CRIU, computes it for a peer that announces nothing: 536 bytes with all
// options. Afterwards it is told what the peer announces (TCP_REPAIR_OPTIONS), but computes the size again
// only when the path's MTU changes (net/ipv4/tcp_output.c, tcp_current_mss).
//
// The kernel also computes it again when options of the IP header are set (net/ipv4/ip_sockglue.c,
// IP_OPTIONS). The connection keeps the options that it has. An IPv6 connection has no such options, unless
// its addresses are mapped IPv4 addresses.
func SyncSegmentSize(socket int) error {
	var options [40]byte
	size := uint32(len(options))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_IP, unix.IP_OPTIONS,
		uintptr(unsafe.Pointer(&options)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return fmt.Errorf("read the IP options of a socket: %w", errno)
	}
	_, _, errno = unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(socket), unix.SOL_IP, unix.IP_OPTIONS,
		uintptr(unsafe.Pointer(&options)), uintptr(size), 0)
	if errno != 0 {
		return fmt.Errorf("set the IP options of a socket: %w", errno)
	}
	return nil
}
