package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ProtocolMPTCP is IPPROTO_MPTCP of include/uapi/linux/in.h.
const ProtocolMPTCP = 262

// ErrListenerBusy is wrapped by errors of ReplaceListener: clients' connections stayed half open or were
// not accepted, or another process had the listener, too.
var ErrListenerBusy = errors.New(
	"connections to the listener stay half open or unaccepted, or another process has it, too")

const (
	// drainPatience is how long connections that had begun may take to be accepted. A client that
	// retransmits its part of the handshake does so after a second, and two seconds later once more.
	drainPatience = 5 * time.Second
	drainPause    = 2 * time.Millisecond
	maxBacklog    = 1 << 16
)

// ReplaceListener gives a process a TCP listener in place of the MPTCP listener at descriptor fd, with
// the same address and options, at all descriptors that the process has of it. procs lists all processes
// that may have the listener; only this one may. Clients notice nothing: connections that have begun are
// accepted from the old listener, later ones from the new one. A client that asks for MPTCP gets TCP, as
// from any server without MPTCP (RFC 8684, section 3.7). Epoll instances of the process watch the new
// listener as they did the old one, and a thread that waits in accept(2) waits at the new one.
//
// The new listener belongs to the caller until the last moment: if the caller dies before, the old one
// goes on. All threads of the process are stopped for well under a millisecond for the exchange itself.
//
// Errors: ErrUntraceable, ErrListenerBusy, fs.ErrNotExist when the process has ended, and errors of the
// listener, which say what cannot be replaced. The old listener stays then.
func ReplaceListener(ctx context.Context, pid, fd int, procs func() ([]int, error)) error {
	if err := replaceListener(ctx, pid, fd, procs); err != nil {
		return fmt.Errorf("replace the MPTCP listener of process %d (descriptor %d): %w", pid, fd, err)
	}
	return nil
}

func replaceListener(ctx context.Context, pid, fd int, procs func() ([]int, error)) (err error) {
	r := replacement{pid: pid, procs: procs}
	if r.pidfd, err = PidfdOpen(pid); err != nil {
		return err
	}
	defer r.pidfd.Close()
	if r.old, err = PidfdGetfd(r.pidfd, fd); err != nil {
		return err
	}
	defer unix.Close(r.old)
	if err := unix.Fstat(r.old, &r.status); err != nil {
		return err
	}
	if r.new, err = r.listen(); err != nil {
		return err
	}
	defer unix.Close(r.new)
	if err := r.exchange(ctx); err != nil {
		return errors.Join(err, r.unshare(r.old))
	}
	return r.finish()
}

// replacement is one listener that takes the place of another one.
type replacement struct {
	pid      int
	procs    func() ([]int, error)
	pidfd    *os.File
	old, new int         // descriptors of this process
	status   unix.Stat_t // of the old one
}

// listen makes the new listener. From then on it gets all new connections: both share the port for a moment
// (SO_REUSEPORT), and a filter chooses the second of them (socket(7), SO_ATTACH_REUSEPORT_CBPF).
func (r *replacement) listen() (int, error) {
	shared, err := unix.GetsockoptInt(r.old, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	if err != nil || shared != 0 {
		return -1, errors.Join(err, errors.New("it shares its port with other listeners (SO_REUSEPORT)"))
	}
	fd, err := r.socket()
	if err != nil {
		return -1, err
	}
	if err := r.bind(fd); err != nil {
		return -1, errors.Join(err, r.unshare(r.old), unix.Close(fd))
	}
	return fd, nil
}

// socket makes a socket in the process's network namespace, of the process's user: only sockets of one
// user may share a port (net/ipv4/inet_connection_sock.c, inet_csk_bind_conflict).
func (r *replacement) socket() (int, error) {
	family, err := unix.GetsockoptInt(r.old, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return -1, err
	}
	fd, err := socketIn(r.pid, family, unix.SOCK_STREAM, unix.IPPROTO_TCP)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchown(fd, int(r.status.Uid), int(r.status.Gid)); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// bind gives the new listener the old one's options and address.
func (r *replacement) bind(fd int) error {
	if err := copyListenerOptions(fd, r.old); err != nil {
		return err
	}
	for _, one := range []int{r.old, fd} {
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
	if err := unix.Bind(fd, address); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	// A listener's tcpi_sacked is its backlog (net/ipv4/tcp.c, tcp_get_info).
	if err := unix.Listen(fd, int(min(info.Sacked, maxBacklog))); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	second := [...]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}
	filter := unix.SockFprog{Len: uint16(len(second)), Filter: &second[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &filter)
	if err != nil {
		return fmt.Errorf("direct connections: %w", err)
	}
	return nil
}

func (r *replacement) unshare(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0)
}

// exchange waits until the old listener has no connection any more, and puts the new one in its place.
func (r *replacement) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainPatience, ErrListenerBusy)
	defer cancel()
	watch, err := OpenTCPWatch(r.pid)
	if err != nil {
		return err
	}
	defer watch.Close()
	for opening := true; ; {
		if opening {
			halfOpen, err := watch.HalfOpen()
			if err != nil {
				return err
			}
			opening = halfOpen > 0 // once there is none, all later ones are the new listener's
		}
		if !opening {
			if done, err := r.tryExchange(); done || err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(drainPause):
		}
	}
}

// tryExchange tells whether the old listener had nothing to accept, and the new one has taken its place.
func (r *replacement) tryExchange() (done bool, err error) {
	if waiting, err := r.waiting(); waiting || err != nil {
		return false, err
	}
	asTracer(func() bool {
		h := &holding{pid: r.pid}
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

// waiting tells whether connections wait at the old listener to be accepted.
func (r *replacement) waiting() (bool, error) {
	info, err := unix.GetsockoptTCPInfo(r.old, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, fmt.Errorf("look for connections that wait: %w", err)
	}
	return info.Unacked > 0, nil // of a listener, tcpi_unacked counts them (net/ipv4/tcp.c, tcp_get_info)
}

// whileHeld does the exchange while all threads of the process are stopped; the first one makes the
// system calls.
func (r *replacement) whileHeld(t *tracee) (done bool, err error) {
	if waiting, err := r.waiting(); waiting || err != nil {
		return false, err
	}
	if shared, err := r.shared(); shared || err != nil {
		return false, err
	}
	fds, err := socketDescriptors(r.pid, r.status.Ino)
	if err != nil || len(fds) == 0 { // the process has closed it
		return err == nil, err
	}
	flags := make([]int, len(fds))
	for i, fd := range fds {
		if flags[i], err = descriptorFlags(r.pid, fd); err != nil {
			return false, err
		}
	}
	// The flags of the file, such as O_NONBLOCK, are the same for all of its descriptors.
	if _, err := unix.FcntlInt(uintptr(r.new), unix.F_SETFL, flags[0]); err != nil {
		return false, err
	}
	watches, err := epollWatches(r.pid, fds, r.status.Ino)
	if err != nil {
		return false, err
	}
	theirs, err := r.give(t)
	if err != nil {
		return false, err
	}
	return true, errors.Join(r.place(t, theirs, fds, flags, watches), t.close(theirs))
}

// shared tells whether another process has the old listener, too: one that waits for execve, or a worker.
func (r *replacement) shared() (bool, error) {
	pids, err := r.procs()
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		if pid == r.pid {
			continue
		}
		if fds, err := socketDescriptors(pid, r.status.Ino); err == nil && len(fds) > 0 { // else it has ended
			return true, nil
		}
	}
	return false, nil
}

// give hands the new listener to the process, through a pair of sockets that it makes (unix(7), SCM_RIGHTS).
func (r *replacement) give(t *tracee) (theirs uint64, err error) {
	const pair = unix.SOCK_DGRAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if _, err := t.syscall(unix.SYS_SOCKETPAIR, unix.AF_UNIX, pair, 0, t.scratch); err != nil {
		return 0, fmt.Errorf("socketpair: %w", err)
	}
	var ends [2]int32
	err = t.read(t.scratch, unsafe.Slice((*byte)(unsafe.Pointer(&ends)), unsafe.Sizeof(ends)))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.close(uint64(ends[0])), t.close(uint64(ends[1]))) }()
	mine, err := PidfdGetfd(r.pidfd, int(ends[0]))
	if err != nil {
		return 0, err
	}
	defer unix.Close(mine)
	if err := unix.Sendmsg(mine, []byte{0}, unix.UnixRights(r.new), nil, 0); err != nil {
		return 0, fmt.Errorf("send the listener: %w", err)
	}
	return t.receiveDescriptor(uint64(ends[1]))
}

// place puts the new listener where the old one is. If this process dies in the middle, the epoll
// instances of the process may not watch the listener any more.
func (r *replacement) place(t *tracee, theirs uint64, fds, flags []int, watches []epollWatch) error {
	control := func(w epollWatch, operation uint64) error {
		_, err := t.syscall(unix.SYS_EPOLL_CTL, uint64(w.epoll), operation, uint64(w.fd), t.scratch)
		if err != nil {
			return fmt.Errorf("epoll_ctl: %w", err)
		}
		return nil
	}
	for _, w := range watches {
		if err := control(w, unix.EPOLL_CTL_DEL); err != nil {
			return err
		}
	}
	for i, fd := range fds {
		_, err := t.syscall(unix.SYS_DUP3, theirs, uint64(fd), uint64(flags[i]&unix.O_CLOEXEC))
		if err != nil {
			return fmt.Errorf("dup3: %w", err)
		}
	}
	for _, w := range watches {
		if err := t.write(t.scratch, w.event()); err != nil {
			return err
		}
		if err := control(w, unix.EPOLL_CTL_ADD); err != nil {
			return err
		}
	}
	return nil
}

// finish makes the new listener one that shares its port with nobody, as the old one was.
func (r *replacement) finish() error {
	detach := unix.SetsockoptInt(r.new, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	return errors.Join(detach, r.unshare(r.new))
}
