package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// TCPUnderWay is the state in the TCP of a network namespace that belongs to no process, or not yet: a dump
// of its processes loses it. Connections within the namespace are counted separately: the kernel needs no
// network to finish them, but may need a process that takes the data.
type TCPUnderWay struct {
	// in the middle of the handshake: the peer has an answer, and may consider itself connected
	HalfOpen    int
	Unaccepted  int // in the queues of listening sockets; also from within
	Ending      int // closed by its process, but not yet acknowledged by the peer
	Undelivered int // of those: also with unacknowledged data
	// of all Ending: what is not acknowledged, in bytes; the end itself counts as one
	UndeliveredBytes int
	Within           int // half open or ending, with both ends in the namespace
}

// TCPWatch checks the TCP of a network namespace repeatedly. It is for one goroutine.
type TCPWatch struct {
	socket int
	// by cookie, the connections that Within last counted, and when they were first seen
	within map[uint64]time.Time
}

// OpenTCPWatch watches the network namespace of a process.
func OpenTCPWatch(pid int) (*TCPWatch, error) {
	socket, err := diagSocket(pid)
	if err != nil {
		return nil, fmt.Errorf("watch the TCP of process %d: %w", pid, err)
	}
	return &TCPWatch{socket: socket}, nil
}

// diagSocket makes a socket for sock_diag(7) in the network namespace of a process.
func diagSocket(pid int) (int, error) {
	return SocketIn(pid, unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_SOCK_DIAG)
}

// SocketIn makes a socket in the network namespace of a process, where it stays.
func SocketIn(pid, family, kind, protocol int) (int, error) {
	type result struct {
		socket int
		err    error
	}
	done := make(chan result)
	go func() {
		// never unlocked: the thread is in another namespace and ends with the goroutine
		runtime.LockOSThread()
		if err := enterNetwork(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
			done <- result{-1, err}
			return
		}
		socket, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		done <- result{socket, err}
	}()
	r := <-done
	return r.socket, r.err
}

// enterNetwork takes the thread to a network namespace.
func enterNetwork(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
}

// Close ends the watch.
func (w *TCPWatch) Close() error { return unix.Close(w.socket) }

// UnderWay checks everything, in some tenths of a millisecond: the kernel has one table for all namespaces.
func (w *TCPWatch) UnderWay() (TCPUnderWay, error) {
	var found tcpLook
	const states = 1<<tcpSynReceived | 1<<tcpFinWait1 | 1<<tcpLastAck | 1<<tcpClosing | 1<<tcpListening
	if err := w.ask(states, found.add); err != nil {
		return TCPUnderWay{}, err
	}
	w.notice(found.within)
	return found.TCPUnderWay, nil
}

func (w *TCPWatch) notice(cookies []uint64) {
	now := time.Now()
	within := make(map[uint64]time.Time, len(cookies))
	for _, cookie := range cookies {
		within[cookie] = now
		if first, ok := w.within[cookie]; ok {
			within[cookie] = first
		}
	}
	w.within = within
}

// WithinSince returns how many of the connections that Within has last counted had been seen before a time.
func (w *TCPWatch) WithinSince(at time.Time) int {
	n := 0
	for _, first := range w.within {
		if first.Before(at) {
			n++
		}
	}
	return n
}

// Unaccepted counts only the connections in the queues of listening sockets, in a tenth of that time.
func (w *TCPWatch) Unaccepted() (int, error) {
	var found tcpLook
	err := w.ask(1<<tcpListening, found.add)
	return found.Unaccepted, err
}

// HalfOpen returns the cookies of the half-open connections to a port. It leaves out those whose client no
// longer answers.
func (w *TCPWatch) HalfOpen(port uint16) (map[uint64]bool, error) {
	cookies := map[uint64]bool{}
	err := w.ask(1<<tcpSynReceived, func(b []byte) error {
		if len(b) < inetDiagMessage {
			return errNetlink
		}
		if b[inetDiagRepeated] < hopeless && binary.BigEndian.Uint16(b[inetDiagPort:]) == port {
			cookies[binary.NativeEndian.Uint64(b[inetDiagCookie:])] = true
		}
		return nil
	})
	return cookies, err
}

// Listeners counts the TCP listeners with an address and port, an MPTCP listener as one.
func (w *TCPWatch) Listeners(at netip.AddrPort) (n int, err error) {
	err = w.ask(1<<tcpListening, func(b []byte) error {
		if len(b) < inetDiagMessage {
			return errNetlink
		}
		if localAddress(b) == at {
			n++
		}
		return nil
	})
	return n, err
}

// localAddress returns the local end of a socket: struct inet_diag_msg.
func localAddress(b []byte) netip.AddrPort {
	address := netip.AddrFrom16([16]byte(b[inetDiagLocal:]))
	if b[0] == unix.AF_INET {
		address = netip.AddrFrom4([4]byte(b[inetDiagLocal:]))
	}
	return netip.AddrPortFrom(address, binary.BigEndian.Uint16(b[inetDiagPort:]))
}

// States of a TCP socket (include/net/tcp_states.h).
const (
	tcpSynReceived = 3
	tcpFinWait1    = 4
	tcpLastAck     = 9
	tcpListening   = 10
	tcpClosing     = 11
)

// Of include/uapi/linux/inet_diag.h.
const (
	tcpDiagGetSock  = 18
	inetDiagRequest = 60 // size of struct inet_diag_req; the states are at 52
	inetDiagStates  = 52
	inetDiagMessage = 72 // size of struct inet_diag_msg; the following are offsets in it
	inetDiagPort    = 4  // local port
	inetDiagLocal   = 8  // local address
	inetDiagCookie  = 44

	inetDiagRepeated = 3 // number of retransmissions of the socket's last segment
)

// ask requests the sockets in some states. The old form of the request is for both families at once
// (net/ipv4/inet_diag.c, inet_diag_dump_compat), which halves the time. emit gets each struct
// inet_diag_msg.
func (w *TCPWatch) ask(states uint32, emit func(message []byte) error) error {
	request := make([]byte, netlinkHeader+inetDiagRequest)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], tcpDiagGetSock)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request[netlinkHeader] = unix.AF_INET
	binary.NativeEndian.PutUint32(request[netlinkHeader+inetDiagStates:], states)
	err := unix.Sendto(w.socket, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	buffer := make([]byte, 64<<10)
	for done := false; err == nil && !done; {
		var n int
		if n, _, err = unix.Recvfrom(w.socket, buffer, 0); err == nil {
			done, err = parseDiag(buffer[:n], tcpDiagGetSock, emit)
		}
	}
	if err != nil {
		return fmt.Errorf("list TCP sockets: %w", err)
	}
	return nil
}

// hopeless is the number of retransmissions, over at least 3 s, after which the peer counts as gone.
const hopeless = 2

// tcpLook is the result of one check.
type tcpLook struct {
	TCPUnderWay
	within []uint64 // cookies of the sockets that Within counts
}

// add counts a socket: struct inet_diag_msg.
func (t *tcpLook) add(b []byte) error {
	if len(b) < inetDiagMessage {
		return errNetlink
	}
	state, repeated := b[1], b[3]
	received, sent, inode := binary.NativeEndian.Uint32(b[56:]), binary.NativeEndian.Uint32(b[60:]),
		binary.NativeEndian.Uint32(b[68:])
	switch {
	case state == tcpListening:
		t.Unaccepted += int(received)
	case repeated >= hopeless || inode != 0: // a descriptor refers to it
	case isInner(b[0], b[8:24], b[24:40]):
		t.Within++
		t.within = append(t.within, binary.NativeEndian.Uint64(b[inetDiagCookie:]))
	case state == tcpSynReceived:
		t.HalfOpen++
	default:
		t.Ending++
		t.UndeliveredBytes += int(sent)
		if sent > 1 { // the end itself counts as one byte
			t.Undelivered++
		}
	}
	return nil
}

// isInner reports whether a connection's peer is in the same namespace.
func isInner(family byte, local, remote []byte) bool {
	from, to := netip.AddrFrom16([16]byte(local)), netip.AddrFrom16([16]byte(remote))
	if family == unix.AF_INET {
		from, to = netip.AddrFrom4([4]byte(local)), netip.AddrFrom4([4]byte(remote))
	}
	return from == to || to.Unmap().IsLoopback()
}
