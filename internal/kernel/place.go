package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// places are a process's descriptors and watches of a listener.
type places struct {
	fds, flags []int
	watches    []epollWatch
}

func (p places) equal(q places) bool {
	return slices.Equal(p.fds, q.fds) && slices.Equal(p.flags, q.flags) && slices.Equal(p.watches, q.watches)
}

// Offsets of the system calls' arguments in the scratch memory.
const (
	messageAt = 0 // struct msghdr and what it points to
	controlAt = 128
	filterAt  = 192 // struct sock_fprog and what it points to
	eventsAt  = 256
	eventSize = 16
)

// place puts a listener of this process at the places where the target process has another one. The target
// gets it through a pair of sockets (unix(7), SCM_RIGHTS). If this process dies in the middle, the target
// does the rest by itself. Then an additional descriptor of the listener, or one of the pair, may stay
// open.
func (r *replacement) place(t *Tracee, listener int, at places) (begun bool, err error) {
	near, far, err := r.pair(t)
	if err != nil {
		return false, err
	}
	defer unix.Close(near)
	s, err := t.layOutSequence(at.calls(t, far), eventsAt+eventSize*len(at.watches))
	if err == nil {
		err = at.writeArguments(t)
	}
	if err != nil {
		return false, errors.Join(err, t.close(far))
	}
	take := len(at.watches)
	control := t.scratch + controlAt
	if s.frames != 0 {
		control = s.argument(take+1) - unix.SizeofCmsghdr // the descriptor becomes the argument of dup3
	}
	if err := t.writeMessage(t.scratch+messageAt, control); err != nil {
		return false, errors.Join(err, t.close(far))
	}
	s.calls[take].ready = func() error {
		r.step()
		return sendListener(near, listener)
	}
	s.calls[take].done = func() error {
		theirs, err := t.receivedDescriptor(control)
		if err != nil {
			return err
		}
		return errors.Join(s.setArgument(take+1, theirs), s.setArgument(len(s.calls)-1, theirs))
	}
	return true, s.run()
}

// sendListener does not block: a process that shares memory or descriptors with the target may have
// replaced this socket by a full one.
func sendListener(socket, listener int) error {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	return unix.Sendmsg(socket, []byte{0}, unix.UnixRights(listener), nil, flags)
}

// pair makes the process create a pair of sockets, and takes one of them.
func (r *replacement) pair(t *Tracee) (near int, far uint64, err error) {
	const kind = unix.SOCK_DGRAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if _, err := t.syscall(unix.SYS_SOCKETPAIR, unix.AF_UNIX, kind, 0, t.scratch); err != nil {
		return 0, 0, fmt.Errorf("socketpair: %w", err)
	}
	var ends [2]int32
	err = t.read(t.scratch, unsafe.Slice((*byte)(unsafe.Pointer(&ends)), unsafe.Sizeof(ends)))
	if err != nil {
		return 0, 0, err
	}
	far = uint64(ends[1])
	near, err = PidfdGetfd(r.pidfd, int(ends[0]))
	if err = errors.Join(err, t.close(uint64(ends[0]))); err != nil {
		return 0, 0, errors.Join(err, t.close(far))
	}
	return near, far, nil
}

// calls returns the system calls by which the process takes a listener out of a socket. Several descriptors
// may belong to one epoll instance, whose watches then occur as often: after the first time they are
// already gone, or already there.
func (p places) calls(t *Tracee, socket uint64) []call {
	const unknown = ^uint64(0)
	var calls []call
	control := func(i, operation int, fine unix.Errno) {
		w := p.watches[i]
		event := t.scratch + eventsAt + uint64(i*eventSize)
		calls = append(calls, call{name: "epoll_ctl", number: unix.SYS_EPOLL_CTL, fine: fine,
			arguments: [5]uint64{uint64(w.epoll), uint64(operation), uint64(w.fd), event}})
	}
	for i := range p.watches {
		control(i, unix.EPOLL_CTL_DEL, unix.ENOENT)
	}
	const flags = unix.MSG_CMSG_CLOEXEC | unix.MSG_DONTWAIT
	calls = append(calls, call{name: "recvmsg", number: unix.SYS_RECVMSG,
		arguments: [5]uint64{socket, t.scratch + messageAt, flags}})
	from := unknown
	for i, fd := range p.fds {
		calls = append(calls, call{name: "dup3", number: unix.SYS_DUP3,
			arguments: [5]uint64{from, uint64(fd), uint64(p.flags[i] & unix.O_CLOEXEC)}})
		from = uint64(p.fds[0])
	}
	for i := range p.watches {
		control(i, unix.EPOLL_CTL_ADD, unix.EEXIST)
	}
	// If this process dies, the other threads continue at once, and one of them may wait at the old
	// listener again, in accept(2). So the first listener of the two gets the next connections: the old
	// one, until no thread waits there.
	calls = append(calls, call{name: "setsockopt", number: unix.SYS_SETSOCKOPT, orphan: true,
		arguments: [5]uint64{uint64(p.fds[0]), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			t.scratch + filterAt, uint64(unsafe.Sizeof(unix.SockFprog{}))}})
	for _, fd := range []uint64{socket, unknown} {
		calls = append(calls, call{name: "close", number: unix.SYS_CLOSE, arguments: [5]uint64{fd}})
	}
	return calls
}

// writeArguments writes what the arguments of epoll_ctl and setsockopt point to.
func (p places) writeArguments(t *Tracee) error {
	var header unix.SockFprog
	first := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	program := make([]byte, unsafe.Sizeof(header))
	at := t.scratch + filterAt + uint64(len(program))
	binary.NativeEndian.PutUint16(program[unsafe.Offsetof(header.Len):], 1)
	binary.NativeEndian.PutUint64(program[unsafe.Offsetof(header.Filter):], at)
	program = append(program, unsafe.Slice((*byte)(unsafe.Pointer(&first)), unsafe.Sizeof(first))...)
	if err := t.write(t.scratch+filterAt, program); err != nil {
		return err
	}
	for i, w := range p.watches {
		if err := t.write(t.scratch+eventsAt+uint64(i*eventSize), w.event()); err != nil {
			return err
		}
	}
	return nil
}
