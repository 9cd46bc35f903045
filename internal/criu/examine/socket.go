package examine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
)

// socketInode reads "socket:[4711]".
func socketInode(target string) (uint32, bool) {
	text, ok := strings.CutPrefix(target, "socket:[")
	if !ok {
		return 0, false
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32)
	return uint32(inode), err == nil
}

// checkSocket queries the socket's type, through a duplicate of its descriptor.
func (x *examination) checkSocket(t *task, pidfd *os.File, d descriptors.Descriptor) (finding, error) {
	fd, err := kernel.PidfdGetfd(pidfd, d.FD)
	if errors.Is(err, unix.EBADF) {
		return finding{}, nil // closed meanwhile
	}
	if err != nil {
		return finding{}, err
	}
	defer unix.Close(fd)
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return finding{}, err
	}
	switch family {
	case unix.AF_INET, unix.AF_INET6:
		return x.checkInternet(t, fd, d)
	case unix.AF_UNIX:
		return x.checkUnix(fd, d), nil
	case unix.AF_NETLINK:
		return checkNetlink(fd)
	case unix.AF_PACKET:
		return finding{}, nil
	default:
		name, ok := families[family]
		if !ok {
			name = fmt.Sprintf("address family %d", family)
		}
		return finding{what: name + " socket", why: "CRIU cannot dump sockets of this family",
			remedy: "close it or turn the feature off in the application"}, nil
	}
}

// families are the well-known address families.
var families = map[int]string{
	unix.AF_VSOCK: "AF_VSOCK", unix.AF_XDP: "AF_XDP", unix.AF_ALG: "AF_ALG", unix.AF_KEY: "AF_KEY",
	unix.AF_CAN:  "AF_CAN",
	unix.AF_TIPC: "AF_TIPC", unix.AF_BLUETOOTH: "AF_BLUETOOTH", unix.AF_RDS: "AF_RDS", unix.AF_SMC: "AF_SMC",
	unix.AF_NFC: "AF_NFC", unix.AF_QIPCRTR: "AF_QIPCRTR",
}

// checkInternet refuses protocols that CRIU does not dump.
func (x *examination) checkInternet(t *task, fd int, d descriptors.Descriptor) (finding, error) {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return finding{}, err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return finding{}, err
	}
	switch {
	case protocol == inject.ProtocolMPTCP:
		return x.checkMultipath(t, fd, d), nil
	case kind == unix.SOCK_STREAM && protocol == unix.IPPROTO_TCP:
		return checkUpperProtocol(fd), nil
	case kind == unix.SOCK_RAW:
		return finding{}, nil
	case kind == unix.SOCK_DGRAM:
		switch protocol {
		case unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE:
			return checkCork(fd), nil
		case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
			return finding{}, nil
		}
	}
	name := fmt.Sprintf("socket of protocol %d", protocol)
	if protocol == unix.IPPROTO_SCTP {
		name = "SCTP socket"
	}
	return finding{what: name, why: "CRIU cannot dump sockets of this protocol",
		remedy: "turn the feature off in the application"}, nil
}

// checkUpperProtocol finds TCP sockets whose stream the kernel changes, such as kernel TLS: CRIU would
// restore them without it.
func checkUpperProtocol(fd int) finding {
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP)
	if err != nil || strings.Trim(name, "\x00") == "" {
		return finding{} // no upper layer protocol, or a kernel without them
	}
	return finding{what: "TCP socket with kernel " + strings.Trim(name, "\x00"),
		why:    "CRIU does not carry what the kernel adds to the stream",
		remedy: "turn kernel TLS off in the application"}
}

// udpCork is UDP_CORK of include/uapi/linux/udp.h.
const udpCork = 1

// checkCork finds UDP sockets that are collecting a datagram (criu/sk-inet.c). A datagram that is collected
// by MSG_MORE cannot be detected.
func checkCork(fd int) finding {
	on, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, udpCork)
	if err != nil || on == 0 {
		return finding{}
	}
	return finding{what: "UDP socket that collects a datagram (UDP_CORK)",
		why: "CRIU cannot dump the collected data",
		remedy: "try again when the application has sent the datagram, or turn UDP_CORK off in the " +
			"application"}
}

// checkNetlink finds memberships that CRIU cannot dump: in groups above 32 (criu/sk-netlink.c).
func checkNetlink(fd int) (finding, error) {
	groups, err := kernel.NetlinkGroups(fd)
	if err != nil {
		return finding{}, err
	}
	for _, g := range groups {
		if g > 32 {
			return finding{what: fmt.Sprintf("netlink socket in multicast group %d", g),
				why:    "CRIU cannot dump memberships in groups above 32",
				remedy: "turn the feature off in the application"}, nil
		}
	}
	return finding{}, nil
}

// checkUnix finds connections out of the container, and data that cannot be dumped.
func (x *examination) checkUnix(fd int, d descriptors.Descriptor) finding {
	inode, ok := socketInode(d.Target)
	if !ok {
		return finding{}
	}
	s, listed := x.peers[inode]
	if !listed && isStill(fd, inode) || x.isOutside(s.Peer) || x.isOutside(x.waiting[inode]) {
		return finding{what: "unix socket connected to a process outside of the container",
			why:    "that process does not move",
			remedy: "close the connection; use TCP for what leads out of the container"}
	}
	for _, w := range s.Waiting {
		if w == 0 {
			return finding{what: "listening unix socket with a connection that its other end has closed " +
				"before it was accepted",
				why:    "CRIU cannot tell whether data waits in it, and cannot dump it",
				remedy: "try again when the application has accepted the connection"}
		}
		if x.isOutside(w) {
			return finding{what: "listening unix socket with a connection from outside of the container",
				why: "the process at the other end does not move", remedy: "close the connection"}
		}
	}
	return x.checkUnixQueue(fd, inode)
}

// isStill reports whether a descriptor is still the socket that it was when the sockets of the container's
// network namespaces were listed. A socket that was not listed belongs to another namespace: accepting a
// connection from there makes such a socket (net/unix/af_unix.c, unix_stream_connect).
func isStill(fd int, inode uint32) bool {
	var stat unix.Stat_t
	return unix.Fstat(fd, &stat) == nil && stat.Ino == uint64(inode)
}

// isOutside reports whether a socket is open in a process outside of the container. A socket that no
// process has open is in flight: its descriptor was sent over a unix socket and not received yet.
func (x *examination) isOutside(inode uint32) bool {
	return inode != 0 && !x.sockets[inode] && x.outsider(fmt.Sprintf("socket:[%d]", inode)) != 0
}

// established is the state of a connected unix socket, include/net/tcp_states.h.
const established = 1

// inFlight finds unix sockets in flight that CRIU dumps but cannot restore ("Empty list on file desc",
// criu/files.c of 4.2): those to which no other socket is connected, except listeners and streams that were
// never connected.
func (x *examination) inFlight() []finding {
	candidates := map[string]bool{}
	for inode, s := range x.peers {
		lost := s.Type == unix.SOCK_DGRAM || s.State == established
		if inode != 0 && lost && s.Peer == 0 && !x.sockets[inode] && x.waiting[inode] == 0 {
			candidates[fmt.Sprintf("socket:[%d]", inode)] = true
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	x.eachOutside(func(_ int, target string) bool {
		delete(candidates, target)
		return len(candidates) > 0
	})
	var found []finding
	for name := range candidates {
		found = append(found, finding{noFD, "unix " + name + " in a message that is not received yet",
			"CRIU cannot restore an unconnected socket that is in a message",
			"try again when the application has received the message"})
	}
	return found
}
