package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of include/uapi/linux/userfaultfd.h, for memory whose missing pages are filled from outside.
const (
	ioctlFaultWake = 0x8010AA02 // _IOR(0xAA, 0x02, struct uffdio_range)
	ioctlFaultCopy = 0xC028AA03 // _IOWR(0xAA, 0x03, struct uffdio_copy)
	ioctlFaultZero = 0xC020AA04 // _IOWR(0xAA, 0x04, struct uffdio_zeropage)
	ioctlFaultCont = 0xC020AA07 // _IOWR(0xAA, 0x07, struct uffdio_continue), Linux 5.13
	ioctlFaultLost = 0xC020AA08 // _IOWR(0xAA, 0x08, struct uffdio_poison), Linux 6.6

	featurePoison = 1 << 14 // UFFD_FEATURE_POISON

	faultMessage = 32 // sizeof(struct uffd_msg)
)

// FaultKind is what happened to memory that is filled from outside.
type FaultKind uint8

// The kinds of userfaultfd(2).
const (
	FaultPage   FaultKind = 0x12 // touched a missing page: Address
	FaultFork   FaultKind = 0x13 // made a child, whose memory is missing the same pages: Child
	FaultRemap  FaultKind = 0x14 // moved Length bytes from Address to To
	FaultRemove FaultKind = 0x15 // gives the pages from Address to To back; reported before it happens
	FaultUnmap  FaultKind = 0x16 // unmapped the pages from Address to To
)

// FaultEvent is one message of a userfaultfd.
type FaultEvent struct {
	Kind    FaultKind
	Address uint64
	To      uint64
	Length  uint64
	Child   *Faults // the receiver closes it
}

// Errors of Faults.
var (
	// ErrFaultRetry means that an event is waiting to be read, or that a reported change is still in
	// progress.
	ErrFaultRetry = errors.New("the mapping is changing")
	// ErrFaultThere means that the page is not missing.
	ErrFaultThere = errors.New("the page is there")
	// ErrFaultUnmapped means that the pages are not all in one mapping that is filled from outside.
	ErrFaultUnmapped = errors.New("no such mapping")
	// ErrFaultGone means that the process has ended.
	ErrFaultGone = errors.New("the process is gone")
)

// Faults is the userfaultfd of another process, in non-blocking mode and with its API call done, through
// which missing pages of registered memory are filled. Its methods may be called concurrently, but Close
// must come last.
//
// If the last descriptor of it in any process is closed, missing pages read as zeros.
type Faults struct {
	fd     uintptr
	file   *os.File
	conn   syscall.RawConn
	closed atomic.Bool
}

// NewFaults takes over a descriptor.
func NewFaults(fd int) (*Faults, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("use userfaultfd %d: %w", fd, err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "userfaultfd") // non-blocking: the runtime waits for it
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("use userfaultfd %d: %w", fd, err), file.Close())
	}
	return &Faults{fd: uintptr(fd), file: file, conn: conn}, nil
}

// Wait calls look as soon as there may be something to read, again and again until look returns false. look
// may return false only after Read has found nothing. Close makes Wait return os.ErrClosed.
func (f *Faults) Wait(look func() (more bool)) error {
	err := f.conn.Read(func(uintptr) bool {
		for look() {
		}
		return false // wait again
	})
	if f.closed.Load() {
		return os.ErrClosed
	}
	return err
}

// Read reads one message; false if there is none.
func (f *Faults) Read() (FaultEvent, bool, error) {
	var b [faultMessage]byte
	for {
		n, err := unix.Read(int(f.fd), b[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return FaultEvent{}, false, nil
		case err != nil:
			return FaultEvent{}, false, fmt.Errorf("read userfaultfd: %w", err)
		}
		e, child, err := parseFault(b[:n])
		if err == nil && e.Kind == FaultFork {
			e.Child, err = NewFaults(child)
		}
		return e, err == nil, err
	}
}

// parseFault parses struct uffd_msg: the kind in byte 0, three words from byte 8 on. For a page fault, the
// first word has flags, and the second the address; for a fork, the first word is a descriptor.
func parseFault(b []byte) (e FaultEvent, child int, err error) {
	if len(b) != faultMessage {
		return e, -1, fmt.Errorf("read userfaultfd: a message of %d bytes, want %d", len(b), faultMessage)
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8+8*i:]) }
	switch e.Kind = FaultKind(b[0]); e.Kind {
	case FaultPage:
		e.Address = word(1)
	case FaultFork:
		return e, int(binary.NativeEndian.Uint32(b[8:])), nil
	case FaultRemap:
		e.Address, e.To, e.Length = word(0), word(1), word(2)
	case FaultRemove, FaultUnmap:
		e.Address, e.To = word(0), word(1)
	default:
		return e, -1, fmt.Errorf("read userfaultfd: an event of unknown kind %#x", b[0])
	}
	return e, -1, nil
}

// Copy fills missing pages, all in one mapping, with data, and wakes the threads that wait for them. It
// returns how many bytes were filled, possibly fewer than requested without an error, and 0 with an error.
func (f *Faults) Copy(to uint64, data []byte) (int, error) {
	arg := struct {
		dst, src, len, mode uint64
		copied              int64
	}{dst: to, src: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))), len: uint64(len(data))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.fd, ioctlFaultCopy, uintptr(unsafe.Pointer(&arg)))
	if arg.copied > 0 {
		return int(arg.copied), nil
	}
	return 0, faultError("fill", to, errno)
}

// Zero fills missing pages with zeros; otherwise it is like Copy.
func (f *Faults) Zero(at, length uint64) (int, error) {
	n, errno := f.change(ioctlFaultZero, at, length)
	return n, faultError("zero", at, errno)
}

// Poison makes each later access to missing pages fail with SIGBUS; otherwise it is like Copy. See
// ProbePoison.
func (f *Faults) Poison(at, length uint64) (int, error) {
	n, errno := f.change(ioctlFaultLost, at, length)
	return n, faultError("poison", at, errno)
}

// change makes requests that have a range, a mode, and a count of changed bytes.
func (f *Faults) change(request uintptr, at, length uint64) (int, syscall.Errno) {
	arg := struct {
		start, len, mode uint64
		changed          int64
	}{start: at, len: length}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.fd, request, uintptr(unsafe.Pointer(&arg)))
	if arg.changed > 0 {
		return int(arg.changed), 0
	}
	return 0, errno
}

// Gone reports whether the process has ended, or runs another program. The kernel does not report that by
// itself. Gone requests something that the kernel never does to private anonymous memory; the kernel first
// checks whether there is a process. Before Linux 5.13, the answer is always no.
func (f *Faults) Gone() bool {
	const anywhere = 1 << 20
	_, errno := f.change(ioctlFaultCont, anywhere, uint64(os.Getpagesize()))
	return errno == unix.ESRCH
}

// ProbePoison checks whether this kernel has Poison. It need not be requested when a userfaultfd is made.
func ProbePoison() error { return probeUserfault(featurePoison)() }

// Wake makes threads that wait for existing pages look again.
func (f *Faults) Wake(at, length uint64) error {
	arg := struct{ start, len uint64 }{at, length}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.fd, ioctlFaultWake, uintptr(unsafe.Pointer(&arg)))
	return faultError("wake", at, errno)
}

// faultError converts an error of ioctl_userfaultfd(2). Linux before 4.11 returned ENOSPC for a process
// that has ended.
func faultError(what string, address uint64, errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EAGAIN:
		return ErrFaultRetry
	case unix.EEXIST:
		return ErrFaultThere
	case unix.ENOENT:
		return ErrFaultUnmapped
	case unix.ESRCH, unix.ENOSPC:
		return ErrFaultGone
	}
	return fmt.Errorf("%s missing page at %#x: %w", what, address, errno)
}

// Close ends the filling: pages that are still missing will read as zeros.
func (f *Faults) Close() error {
	f.closed.Store(true)
	return f.file.Close()
}
