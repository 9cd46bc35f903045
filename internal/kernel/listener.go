package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ProtocolMPTCP is IPPROTO_MPTCP of include/uapi/linux/in.h.
const ProtocolMPTCP = 262

// ErrListenerBusy is wrapped by errors of ReplaceListener: the old listener could not be drained in time,
// or another process had it open as well.
var ErrListenerBusy = errors.New(
	"the listener still has half-open or unaccepted connections, or another process also has it open")

const (
	// drainPatience is how long begun connections may take to be accepted. A client retransmits its part of
	// the handshake after one second, and again two seconds later.
	drainPatience = 5 * time.Second
	drainPause    = 2 * time.Millisecond
	maxBacklog    = 1 << 16
	// maxOthers is how many descriptors of other processes are examined, in some microseconds each, while
	// the process is stopped.
	maxOthers = 1 << 13
)

// ReplaceListener gives a process a TCP listener in place of the MPTCP listener at descriptor fd, with the
// same address and options, at all of the process's descriptors of it. procs lists all processes that may
// have the listener; only this one may. Clients notice nothing: begun connections are accepted from the old
// listener, later ones from the new one. A client that requests MPTCP gets TCP, as from any server without
// MPTCP (RFC 8684, section 3.7). Epoll instances of the process watch the new listener as they did the old
// one, and a thread that waits in accept(2) waits at the new one.
//
// All threads of the process are stopped for well under a millisecond for the exchange itself, and for some
// microseconds more for each descriptor of the processes. If the caller dies at any point, the process
// continues with either the old listener or the new one. Connections that wait at the new one are reset
// then, as after an error. The old listener may keep SO_REUSEPORT; a later call copes with that, and leaves
// the option set.
//
// Limits: a listener that is on its way to another process (unix(7), SCM_RIGHTS), or that io_uring(7) has
// registered, is not seen there and stays the old one. A socket filter (SO_ATTACH_FILTER) and the owner of
// signals (F_SETOWN) are not copied.
//
// Errors: ErrUntraceable, ErrListenerBusy, fs.ErrNotExist when the process has ended, and errors of the
// listener, which say what cannot be replaced. The process keeps the old listener then.
func ReplaceListener(ctx context.Context, pid, fd int, procs func() ([]int, error)) error {
	if err := replaceListener(ctx, &replacement{pid: pid, procs: procs}, fd); err != nil {
		return fmt.Errorf("replace the MPTCP listener of process %d (descriptor %d): %w", pid, fd, err)
	}
	return nil
}

func replaceListener(ctx context.Context, r *replacement, fd int) (err error) {
	if err := r.open(fd); err != nil {
		return errors.Join(err, r.close())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, drainPatience, ErrListenerBusy)
	defer cancel()
	// This comes before the new listener takes connections that only an exchange can serve.
	if err = until(ctx, r.alone); err == nil {
		err = checkWatches(r.pid, r.status.Ino)
	}
	if err == nil {
		err = r.listen()
	}
	if err == nil {
		err = r.exchange(ctx)
	}
	if err == nil {
		return errors.Join(r.finish(), r.close())
	}
	return errors.Join(err, r.abandon(), r.close())
}

// replacement is the replacement of one listener by another.
type replacement struct {
	pid      int
	procs    func() ([]int, error)
	pidfd    *os.File
	watch    *TCPWatch
	old, new int  // descriptors of this process, 0 if there is none
	shares   bool // the old one has our SO_REUSEPORT; its own value:
	reuse    int
	status   unix.Stat_t // of the old one
	before   func()      // called before each step: tests end this process there
}

func (r *replacement) step() {
	if r.before != nil {
		r.before()
	}
}

// open opens the process and its listener.
func (r *replacement) open(fd int) (err error) {
	if r.pidfd, err = PidfdOpen(r.pid); err != nil {
		return err
	}
	if r.old, err = PidfdGetfd(r.pidfd, fd); err != nil {
		r.old = 0
		return err
	}
	if err := inNetworkOf(r.pid, r.old); err != nil {
		return err
	}
	if r.watch, err = OpenTCPWatch(r.pid); err != nil {
		return err
	}
	return unix.Fstat(r.old, &r.status)
}

// inNetworkOf returns an error unless a socket, open here as fd, is in a process's network namespace. The
// process may have the socket from another one.
func inNetworkOf(pid, fd int) error {
	own, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	its, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return fmt.Errorf("look for its network namespace: %w", err)
	}
	namespace := os.NewFile(uintptr(its), "network namespace")
	defer namespace.Close()
	if is, err := namespace.Stat(); err != nil || !os.SameFile(is, own) {
		return errors.Join(errors.New("it is in a different network namespace from the process"), err)
	}
	return nil
}

func (r *replacement) close() error {
	err := errors.Join(shut(&r.new), shut(&r.old))
	if r.watch != nil {
		err = errors.Join(err, r.watch.Close())
	}
	if r.pidfd != nil {
		err = errors.Join(err, r.pidfd.Close())
	}
	return err
}

// shut closes a descriptor unless it is closed.
func shut(fd *int) error {
	if *fd == 0 {
		return nil
	}
	err := unix.Close(*fd)
	*fd = 0
	return err
}

// until calls try again and again until it is done.
func until(ctx context.Context, try func() (done bool, err error)) error {
	for {
		if done, err := try(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(drainPause):
		}
	}
}

// listen makes the new listener. From then on it gets all new connections: both share the port for a moment
// (SO_REUSEPORT), and a filter chooses the second of them (socket(7), SO_ATTACH_REUSEPORT_CBPF).
func (r *replacement) listen() error {
	shares, err := sharesPort(r.watch, r.old)
	if err != nil {
		return err
	}
	if shares {
		return errors.New("it shares its port with other listeners (SO_REUSEPORT)")
	}
	if err := r.socket(); err != nil {
		return err
	}
	return r.bind()
}

// CheckListener returns an error if ReplaceListener would refuse a listener of a process, open here as fd,
// because of its network namespace or of how epoll instances watch it.
func CheckListener(pid, fd int) error {
	if err := inNetworkOf(pid, fd); err != nil {
		return err
	}
	var status unix.Stat_t
	if err := unix.Fstat(fd, &status); err != nil {
		return err
	}
	return checkWatches(pid, status.Ino)
}

// SharesPort reports whether a listener of a process, open here as fd, shares its address and port with
// others. SO_REUSEPORT alone does not say so: a caller of ReplaceListener that dies in the middle leaves it
// behind.
func SharesPort(pid, fd int) (bool, error) {
	watch, err := OpenTCPWatch(pid)
	if err != nil {
		return false, err
	}
	defer watch.Close()
	return sharesPort(watch, fd)
}

func sharesPort(watch *TCPWatch, fd int) (bool, error) {
	option, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	if err != nil || option == 0 {
		return false, err
	}
	address, err := boundTo(fd)
	if err != nil {
		return false, err
	}
	n, err := watch.listeners(address)
	return n > 1, err
}

// boundTo returns the local address of a socket.
func boundTo(fd int) (netip.AddrPort, error) {
	address, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	default:
		return netip.AddrPort{}, unix.EAFNOSUPPORT
	}
}

// socket makes a socket in the process's network namespace, owned by the process's user: only sockets of
// one user may share a port (net/ipv4/inet_connection_sock.c, inet_csk_bind_conflict).
func (r *replacement) socket() error {
	family, err := unix.GetsockoptInt(r.old, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	fd, err := socketIn(r.pid, family, unix.SOCK_STREAM, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	r.new = fd
	return unix.Fchown(fd, int(r.status.Uid), int(r.status.Gid))
}

// bind gives the new listener the old one's options and address.
func (r *replacement) bind() error {
	fd := r.new
	if err := copyListenerOptions(fd, r.old); err != nil {
		return err
	}
	var err error
	if r.reuse, err = unix.GetsockoptInt(r.old, unix.SOL_SOCKET, unix.SO_REUSEPORT); err != nil {
		return err
	}
	r.shares = true
	for _, one := range []int{r.old, fd} {
		r.step()
		if err := unix.SetsockoptInt(one, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("share the port: %w", err)
		}
	}
	address, err := unix.Getsockname(r.old)
	if err != nil {
		return err
	}
	info, err := unix.GetsockoptTCPInfo(r.old, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return fmt.Errorf("read the backlog: %w", err)
	}
	r.step()
	if err := unix.Bind(fd, address); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	r.step()
	// A listener's tcpi_sacked is its backlog (net/ipv4/tcp.c, tcp_get_info).
	if err := unix.Listen(fd, int(min(info.Sacked, maxBacklog))); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	second := [...]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}
	filter := unix.SockFprog{Len: uint16(len(second)), Filter: &second[0]}
	r.step()
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &filter)
	if err != nil {
		return fmt.Errorf("direct connections: %w", err)
	}
	return nil
}

// exchange waits until the old listener has no connections any more, and puts the new one in its place.
func (r *replacement) exchange(ctx context.Context) error {
	address, err := boundTo(r.old)
	if err != nil {
		return err
	}
	r.step()
	// Before the filter was there, another processor may have found the old listener for a packet.
	time.Sleep(drainPause)
	opening, err := r.watch.HalfOpen(address.Port())
	if err != nil {
		return err
	}
	return until(ctx, func() (bool, error) { // later connections are the new listener's
		if len(opening) == 0 {
			return r.tryExchange()
		}
		still, err := r.watch.HalfOpen(address.Port())
		maps.DeleteFunc(opening, func(cookie uint64, _ bool) bool { return !still[cookie] })
		return false, err
	})
}

// tryExchange reports whether the old listener had nothing to accept, and the new one has taken its place.
func (r *replacement) tryExchange() (done bool, err error) {
	if waiting, err := r.waiting(); waiting || err != nil {
		return false, err
	}
	AsTracer(func() bool {
		h := &holding{pid: r.pid, before: r.before}
		if err = h.stop(); err == nil {
			done, err = r.whileHeld(h.first())
		}
		if e := h.release(); err == nil {
			err = e
		}
		return h.free()
	})
	if errors.Is(err, errMoved) { // it has called execve: look again
		return false, nil
	}
	return done, err
}

// waiting reports whether connections wait at the old listener to be accepted.
func (r *replacement) waiting() (bool, error) {
	info, err := unix.GetsockoptTCPInfo(r.old, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, fmt.Errorf("look for connections that wait: %w", err)
	}
	return info.Unacked > 0, nil // of a listener, tcpi_unacked counts them (net/ipv4/tcp.c, tcp_get_info)
}

// whileHeld makes the exchange while all threads of the process are stopped; the first thread makes the
// system calls.
func (r *replacement) whileHeld(t *Tracee) (done bool, err error) {
	if waiting, err := r.waiting(); waiting || err != nil {
		return false, err
	}
	if alone, err := r.alone(); !alone || err != nil {
		return false, err
	}
	at, err := r.places()
	if err != nil || len(at.fds) == 0 { // the process has closed it
		return err == nil, err
	}
	// The flags of the file, such as O_NONBLOCK, are the same for all of its descriptors.
	if _, err := unix.FcntlInt(uintptr(r.new), unix.F_SETFL, at.flags[0]); err != nil {
		return false, err
	}
	begun, err := r.place(t, r.new, at)
	if err != nil && begun {
		err = errors.Join(err, r.putBack(t, at))
	}
	return err == nil, err
}

// places finds the old listener in the process.
func (r *replacement) places() (p places, err error) {
	if p.fds, err = socketDescriptors(r.pid, r.status.Ino); err != nil {
		return p, err
	}
	p.flags = make([]int, len(p.fds))
	for i, fd := range p.fds {
		if p.flags[i], err = descriptorFlags(r.pid, fd); err != nil {
			return p, err
		}
	}
	p.watches, err = epollWatches(r.pid, p.fds, r.status.Ino)
	return p, err
}

// putBack puts the old listener back. Calls that failed for the new listener, and so changed nothing, may
// fail again; so the final state decides.
func (r *replacement) putBack(t *Tracee, was places) error {
	_, failed := r.place(t, r.old, was)
	if is, err := r.places(); err != nil || !is.equal(was) {
		return errors.Join(errors.New("the old listener is not back everywhere"), failed, err)
	}
	return nil
}

// alone reports whether no other process has the old listener. Another process may be one that waits for
// execve, or a worker.
func (r *replacement) alone() (bool, error) {
	pids, err := r.procs()
	if err != nil {
		return false, err
	}
	left := maxOthers
	for _, pid := range pids {
		if pid == r.pid {
			continue
		}
		fds, looked, err := descriptorsUpTo(left, pid, socketLink(r.status.Ino))
		if errors.Is(err, errManyDescriptors) {
			return false, fmt.Errorf("the other processes have more than %d descriptors: %w",
				maxOthers, ErrListenerBusy)
		}
		if err == nil && len(fds) > 0 { // otherwise it has ended
			return false, nil
		}
		left -= looked
	}
	return true, nil
}

// finish gives the new listener the SO_REUSEPORT of the old one. The old listener ends before the filter
// that keeps connections from it.
func (r *replacement) finish() error {
	r.step()
	err := shut(&r.old)
	r.step()
	detach := unix.SetsockoptInt(r.new, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	r.step()
	return errors.Join(err, detach, unix.SetsockoptInt(r.new, unix.SOL_SOCKET, unix.SO_REUSEPORT, r.reuse))
}

// abandon restores the old listener's own SO_REUSEPORT.
func (r *replacement) abandon() error {
	err := shut(&r.new)
	if r.shares {
		err = errors.Join(err, unix.SetsockoptInt(r.old, unix.SOL_SOCKET, unix.SO_REUSEPORT, r.reuse))
	}
	return err
}
