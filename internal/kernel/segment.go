package kernel

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SyncSegmentSize has the kernel compute anew how large the segments of a TCP connection are. A
// socket that is connected in repair mode, as CRIU does it, computes that for a peer that announces
// nothing: 536 bytes with all options. It is told afterwards what the peer announces
// (TCP_REPAIR_OPTIONS), and computes anew only when the path's MTU changes (net/ipv4/tcp_output.c,
// tcp_current_mss).
//
// It does so, too, when options of the IP header are set (net/ipv4/ip_sockglue.c, IP_OPTIONS), of
// which the connection keeps those that it has. A connection of IPv6 has no such option, unless its
// addresses are mapped ones of IPv4.
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
