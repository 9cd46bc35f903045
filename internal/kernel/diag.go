package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// UnixSocket is a unix socket as reported by sock_diag(7).
type UnixSocket struct {
	Inode uint32
	Type  uint8  // SOCK_STREAM and the like
	State uint8  // TCP_ESTABLISHED, TCP_LISTEN or TCP_CLOSE of include/net/tcp_states.h
	Peer  uint32 // inode of the socket it is connected to, 0 if there is none
	// for a listening socket: inodes of sockets whose connection is not accepted yet, 0 if closed
	Waiting []uint32
}

// Numbers of include/uapi/linux/unix_diag.h.
const (
	unixDiagShowPeer  = 0x4
	unixDiagShowIcons = 0x8
	unixDiagPeer      = 2
	unixDiagIcons     = 3
	unixDiagMessage   = 16 // size of struct unix_diag_msg
	netlinkHeader     = 16
)

// UnixSockets lists the unix sockets in the network namespace of a process.
func UnixSockets(pid int) ([]UnixSocket, error) {
	sockets, err := unixSockets(pid)
	if err != nil {
		return nil, fmt.Errorf("list the unix sockets of process %d: %w", pid, err)
	}
	return sockets, nil
}

func unixSockets(pid int) ([]UnixSocket, error) {
	fd, err := diagSocket(pid)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	request := diagRequest(unix.AF_UNIX, 0)
	binary.NativeEndian.PutUint32(request[netlinkHeader+4:], ^uint32(0)) // sockets in all states
	binary.NativeEndian.PutUint32(request[netlinkHeader+12:], unixDiagShowPeer|unixDiagShowIcons)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	return receiveUnixSockets(fd)
}

func receiveUnixSockets(fd int) ([]UnixSocket, error) {
	var all []UnixSocket
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return nil, err
		}
		sockets, done, err := parseUnixSockets(buf[:n])
		if err != nil {
			return nil, err
		}
		all = append(all, sockets...)
		if done {
			return all, nil
		}
	}
}

var errNetlink = errors.New("malformed answer from sock_diag")

// parseUnixSockets reads the messages of one datagram; done means that the list is complete.
func parseUnixSockets(b []byte) (all []UnixSocket, done bool, err error) {
	done, err = parseDiag(b, sockDiagByFamily, func(body []byte) error {
		s, err := parseUnixSocket(body)
		all = append(all, s)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return all, done, nil
}

// parseDiag calls emit for the messages of this kind in a datagram; done means that the list is complete.
func parseDiag(b []byte, kind uint16, emit func(body []byte) error) (done bool, err error) {
	for len(b) >= netlinkHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < netlinkHeader || size > len(b) {
			return false, errNetlink
		}
		body := b[netlinkHeader:size]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errNetlink
			}
			return false, unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
		case kind:
			if err := emit(body); err != nil {
				return false, err
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return false, nil
}

func parseUnixSocket(b []byte) (UnixSocket, error) {
	if len(b) < unixDiagMessage {
		return UnixSocket{}, errNetlink
	}
	s := UnixSocket{Type: b[1], State: b[2], Inode: binary.NativeEndian.Uint32(b[4:])}
	b = b[unixDiagMessage:]
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return UnixSocket{}, errNetlink
		}
		value := b[4:size]
		switch kind := binary.NativeEndian.Uint16(b[2:]); {
		case kind == unixDiagPeer && len(value) >= 4:
			s.Peer = binary.NativeEndian.Uint32(value)
		case kind == unixDiagIcons:
			for ; len(value) >= 4; value = value[4:] {
				s.Waiting = append(s.Waiting, binary.NativeEndian.Uint32(value))
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return s, nil
}

// NetlinkGroups lists the multicast groups, from 1 on, of which a netlink socket is a member.
func NetlinkGroups(fd int) ([]int, error) {
	words := make([]uint32, 64)
	size := uint32(len(words) * 4)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_NETLINK,
		unix.NETLINK_LIST_MEMBERSHIPS, uintptr(unsafe.Pointer(&words[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("list the groups of netlink socket %d: %w", fd, errno)
	}
	var groups []int
	for i, word := range words[:min(int(size)/4, len(words))] {
		for bit := range 32 {
			if word&(1<<bit) != 0 {
				groups = append(groups, i*32+bit+1)
			}
		}
	}
	return groups, nil
}
