package inject

import (
	"bytes"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// soBufLock is SO_BUF_LOCK (Linux 5.14): which buffers have a size that the program has set.
const soBufLock = 72

// listenerOptions are the options that control how a TCP listener works, or that accepted connections
// inherit.
var listenerOptions = [...]struct{ level, name int }{
	{unix.SOL_SOCKET, unix.SO_REUSEADDR},
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE},
	{unix.SOL_SOCKET, unix.SO_BROADCAST},
	{unix.SOL_SOCKET, unix.SO_OOBINLINE},
	{unix.SOL_SOCKET, unix.SO_PRIORITY},
	{unix.SOL_SOCKET, unix.SO_MARK},
	{unix.SOL_SOCKET, unix.SO_LINGER},
	{unix.SOL_SOCKET, unix.SO_RCVLOWAT},
	{unix.SOL_SOCKET, unix.SO_BINDTODEVICE},
	{unix.SOL_SOCKET, unix.SO_RCVTIMEO},
	{unix.SOL_SOCKET, unix.SO_SNDTIMEO},
	{unix.IPPROTO_TCP, unix.TCP_NODELAY},
	{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT},
	{unix.IPPROTO_TCP, unix.TCP_FASTOPEN},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	{unix.IPPROTO_TCP, unix.TCP_CONGESTION},
	{unix.IPPROTO_IP, unix.IP_TOS},
	{unix.IPPROTO_IP, unix.IP_TTL},
	{unix.IPPROTO_IP, unix.IP_FREEBIND},
	{unix.IPPROTO_IP, unix.IP_TRANSPARENT},
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY},
	{unix.IPPROTO_IPV6, unix.IPV6_TCLASS},
	{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS},
}

// copyListenerOptions copies the options of a socket to another socket of its family. Options that one of
// them does not know were never set.
func copyListenerOptions(to, from int) error {
	for _, o := range listenerOptions {
		want, err1 := rawSocketOption(from, o.level, o.name)
		is, err2 := rawSocketOption(to, o.level, o.name)
		if err1 != nil || err2 != nil || bytes.Equal(is, want) {
			continue
		}
		if err := setRawSocketOption(to, o.level, o.name, want); err != nil {
			return fmt.Errorf("set socket option %d of level %d: %w", o.name, o.level, err)
		}
	}
	return copyBuffers(to, from)
}

// copyBuffers sets the sizes of buffers that the program has set itself. The kernel has doubled them
// (socket(7)).
func copyBuffers(to, from int) error {
	locked, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, soBufLock)
	if err != nil {
		return nil //nolint:nilerr // an older kernel, or a protocol without: the sizes are the kernel's own
	}
	for bit, option := range map[int][2]int{
		1: {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE}, 2: {unix.SO_RCVBUF, unix.SO_RCVBUFFORCE},
	} {
		if locked&bit == 0 {
			continue
		}
		size, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, option[0])
		if err == nil {
			err = unix.SetsockoptInt(to, unix.SOL_SOCKET, option[1], size/2)
		}
		if err != nil {
			return fmt.Errorf("set the size of a buffer: %w", err)
		}
	}
	return nil
}

func rawSocketOption(fd, level, name int) ([]byte, error) {
	value := make([]byte, 64)
	size, err := kernel.SocketOption(fd, level, name, value)
	if err != nil {
		return nil, err
	}
	return value[:size], nil
}

func setRawSocketOption(fd, level, name int, value []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
