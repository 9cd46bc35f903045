package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// A held thread runs for ShortestRun before it is checked again, then longer each time, up to LongestRun.
const (
	ShortestRun = 50 * time.Microsecond
	LongestRun  = 5 * time.Millisecond
)

// ErrUntraceable is wrapped by the errors of OpenUserfault when a process cannot be stopped and examined:
// another process traces it, it is frozen, it does not return from a system call, or it has another
// architecture.
var ErrUntraceable = errors.New("cannot be traced")

const (
	// stopPatience is how long a process may take to stop, or to make a system call. It takes
	// microseconds, unless the process sleeps uninterruptibly (vfork(2), a disk that does not answer) or
	// is frozen.
	stopPatience = time.Second
	// BusyPatience is the same for a process that only waits for a processor.
	BusyPatience = 15 * time.Second
	// spins is the number of checks before sleeping: some 50 microseconds.
	spins = 100

	eventStop   = 128  // PTRACE_EVENT_STOP
	syscallStop = 0x80 // added to SIGTRAP by PTRACE_O_TRACESYSGOOD
)

// AsTracer runs a function in a separate thread. A tracer is a thread: if it cannot release a thread that
// does not stop, it must end, and then the kernel releases it. The function reports whether it has released
// everything.
func AsTracer(trace func() bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the first thread never ends before the process
			AsTracer(trace)
			runtime.UnlockOSThread()
			return
		}
		if trace() {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}

// Tracee is a thread that is made to do something.
type Tracee struct {
	PID     int // process
	TID     int // thread
	Seized  bool
	altered bool // its registers are not its own
	regs    registers
	mask    uint64 // signals that it blocks
	gadget  gadgets
	shadow  bool             // it has a shadow stack
	stack   kernel.Mapping   // of the first thread
	heal    healing          // its way back
	scratch uint64           // memory of the way back for arguments of system calls; 0: none
	wrote   kernel.PageRange // memory that was written
	since   time.Time
	stopped time.Duration
	before  func() // called before each request to the kernel: tests end the tracer there
}

// errMoved means that a process called execve while it was being examined.
var errMoved = errors.New("its code is not what it was a moment ago")

// liveThread returns a thread of the process that has not ended: the first may end before the others.
func liveThread(pid int) (int, error) {
	p, err := kernel.ReadProcess(pid)
	if err != nil {
		return 0, err
	}
	if p.State != 'Z' {
		return pid, nil
	}
	threads, err := kernel.ThreadsOf(pid)
	if err != nil {
		return 0, err
	}
	for _, tid := range threads {
		if tid != pid {
			return tid, nil
		}
	}
	return 0, fmt.Errorf("it has ended: %w", fs.ErrNotExist)
}

// Ptrace makes a request about the thread (ptrace(2)). Error: fs.ErrNotExist when the thread is gone, or not
// stopped.
func (t *Tracee) Ptrace(request int, address, data uintptr) error {
	if t.before != nil {
		t.before()
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(t.TID), address, data, 0, 0)
	if errno == unix.ESRCH {
		return fs.ErrNotExist
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// stop seizes the thread and stops it where the kernel uses no registers except those that it has saved.
func (t *Tracee) stop() error {
	if err := t.seize(); err != nil {
		return err
	}
	if err := t.Ptrace(unix.PTRACE_INTERRUPT, 0, 0); err != nil {
		return fmt.Errorf("interrupt thread %d: %w", t.TID, err)
	}
	return t.AwaitStop()
}

// AwaitStop waits until an interrupted thread has stopped.
func (t *Tracee) AwaitStop() error {
	status, err := t.wait()
	t.since = time.Now()
	for err == nil && status>>16 != eventStop {
		// A signal came first and has replaced the interrupt. The signal is delivered, and the thread stops
		// after that.
		if err = t.Ptrace(unix.PTRACE_INTERRUPT, 0, 0); err == nil {
			err = t.Ptrace(unix.PTRACE_CONT, 0, uintptr(status>>8&0xff))
		}
		if err == nil {
			status, err = t.wait()
			t.since = time.Now()
		}
	}
	if err != nil {
		return fmt.Errorf("stop thread %d: %w", t.TID, err)
	}
	return nil
}

func (t *Tracee) seize() error {
	err := t.Ptrace(unix.PTRACE_SEIZE, 0, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_SUSPEND_SECCOMP)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		// Seccomp filters can be suspended only with CAP_SYS_ADMIN and CONFIG_CHECKPOINT_RESTORE, and not
		// by a process that has a filter itself. Otherwise the filter decides about userfaultfd, and may
		// decide to kill.
		mode, e := kernel.ThreadStatus(t.TID, "Seccomp")
		if e != nil {
			return e
		}
		if mode != "" && mode != "0" && tracedBy(t.PID) == "" {
			return fmt.Errorf("%w: it has a seccomp filter, which this process may not suspend: %w",
				ErrUntraceable, err)
		}
		err = t.Ptrace(unix.PTRACE_SEIZE, 0, unix.PTRACE_O_TRACESYSGOOD)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w%s", ErrUntraceable, err, tracedBy(t.PID))
	}
	if err != nil {
		return fmt.Errorf("seize thread %d: %w", t.TID, err)
	}
	t.Seized = true
	return nil
}

// tracedBy explains why a process cannot be traced, if it is because another one does.
func tracedBy(pid int) string {
	p, err := kernel.ReadProcess(pid)
	if err != nil || p.Tracer == 0 {
		return ""
	}
	return fmt.Sprintf(": process %d traces it", p.Tracer)
}

// wait returns the status of the stopped thread (waitpid(2)). It spins at first, because it usually waits
// only microseconds.
func (t *Tracee) wait() (int, error) {
	pause := kernel.NewBackoff()
	for start, round := time.Now(), 0; ; round++ {
		var status unix.WaitStatus
		got, err := unix.Wait4(t.TID, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			t.Seized = false
			return 0, fs.ErrNotExist
		case got == t.TID && status.Stopped():
			return int(status) >> 8 << 8, nil
		case got == t.TID:
			t.Seized = false
			return 0, fmt.Errorf("it has just ended: %w", fs.ErrNotExist)
		case time.Since(start) > stopPatience && (time.Since(start) > BusyPatience || !t.runnable()):
			return 0, fmt.Errorf("%w: it does not stop", ErrUntraceable)
		}
		if round > spins {
			pause.Wait()
		}
	}
}

// runnable reports whether the thread would run if it got a processor.
func (t *Tracee) runnable() bool {
	p, err := kernel.ReadProcess(t.TID)
	return err == nil && p.State == 'R'
}

// save saves the thread's state.
func (t *Tracee) save() error {
	if err := t.getRegisters(&t.regs); err != nil {
		return err
	}
	if err := t.regs.check(); err != nil {
		return err
	}
	if err := t.Ptrace(unix.PTRACE_GETSIGMASK, unsafe.Sizeof(t.mask),
		uintptr(unsafe.Pointer(&t.mask))); err != nil {
		return fmt.Errorf("read the signal mask: %w", err)
	}
	if err := t.abortRseq(); err != nil {
		return fmt.Errorf("look for a restartable sequence: %w", err)
	}
	return nil
}

func (t *Tracee) setMask(mask uint64) error {
	return t.Ptrace(unix.PTRACE_SETSIGMASK, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
}

// syscall makes the thread do a system call with up to five arguments.
func (t *Tracee) syscall(number uint64, arguments ...uint64) (uint64, error) {
	var five [5]uint64
	copy(five[:], arguments)
	if err := t.prepare(t.heal, number, five); err != nil {
		return 0, err
	}
	return t.perform()
}

// prepare sets the registers for a system call, after which the thread continues on a way if the tracer
// dies. Signals are blocked, so that no handler runs with registers that are not the thread's.
func (t *Tracee) prepare(way healing, number uint64, arguments [5]uint64) error {
	regs := t.regs
	regs.call(t.gadget, way, number, arguments)
	first := !t.altered
	t.altered = true
	if err := t.setRegisters(&regs); err != nil || !first {
		return err
	}
	return t.setMask(^uint64(0))
}

// perform lets the thread make the prepared system call.
func (t *Tracee) perform() (uint64, error) {
	var regs registers
	for range 2 { // stops at entry and exit
		if err := t.toSyscallStop(); err != nil {
			return 0, err
		}
	}
	if err := t.getRegisters(&regs); err != nil {
		return 0, err
	}
	result := int64(regs.result())
	if result < 0 && result > -4096 {
		return 0, unix.Errno(-result)
	}
	return uint64(result), nil
}

// close makes the thread close a descriptor.
func (t *Tracee) close(fd uint64) error {
	if _, err := t.syscall(unix.SYS_CLOSE, fd); err != nil {
		return fmt.Errorf("close descriptor %d in the process: %w", fd, err)
	}
	return nil
}

// writeMessage writes a struct msghdr, with control data elsewhere, for recvmsg(2) of one descriptor.
func writeMessage(t *Tracee, at, control uint64) error {
	const header, vector = unix.SizeofMsghdr, int(unsafe.Sizeof(unix.Iovec{}))
	message := make([]byte, header+vector+8) // 8: a byte of data, and padding
	put := func(offset int, value uint64) { binary.NativeEndian.PutUint64(message[offset:], value) }
	put(header, at+uint64(header+vector)) // struct iovec
	put(header+8, 1)
	for offset, value := range map[uintptr]uint64{
		unsafe.Offsetof(unix.Msghdr{}.Iov):        at + uint64(header),
		unsafe.Offsetof(unix.Msghdr{}.Iovlen):     1,
		unsafe.Offsetof(unix.Msghdr{}.Control):    control,
		unsafe.Offsetof(unix.Msghdr{}.Controllen): uint64(unix.CmsgSpace(4)),
	} {
		put(int(offset), value)
	}
	return t.write(at, message)
}

// receivedDescriptor reads the descriptor that recvmsg(2) has received (unix(7), SCM_RIGHTS).
func receivedDescriptor(t *Tracee, control uint64) (uint64, error) {
	b := make([]byte, unix.CmsgSpace(4))
	if err := t.read(control, b); err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(b)
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(err, errors.New("no descriptor came"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, errors.Join(err, errors.New("no descriptor came"))
	}
	return uint64(fds[0]), nil
}

// toSyscallStop lets the thread run to the next entry or exit of a system call.
func (t *Tracee) toSyscallStop() error {
	signal := 0
	for {
		if err := t.Ptrace(unix.PTRACE_SYSCALL, 0, uintptr(signal)); err != nil {
			return err
		}
		status, err := t.wait()
		if err != nil {
			return err
		}
		stop := status >> 8 & 0xff
		signal = 0
		switch {
		case stop == int(unix.SIGTRAP)|syscallStop:
			return nil
		case status>>16 != eventStop:
			// SIGSTOP is the only signal that cannot be blocked: it stops all threads, and this one when it
			// is released
			signal = stop
		}
	}
}

// Release restores everything and lets the thread continue.
func (t *Tracee) Release() error {
	defer func() { t.stopped = time.Since(t.since) }()
	if !t.Seized {
		return nil
	}
	if t.altered {
		if err := t.restore(); err != nil {
			return err
		}
	}
	err := t.Ptrace(unix.PTRACE_DETACH, 0, 0)
	if errors.Is(err, fs.ErrNotExist) && t.lives() {
		return fmt.Errorf("release thread %d: %w: it does not stop", t.TID, ErrUntraceable)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release thread %d: %w", t.TID, err)
	}
	t.Seized = false
	return nil
}

// lives reports whether the thread is still traced. A thread that has stopped meanwhile no longer is.
func (t *Tracee) lives() bool {
	var status unix.WaitStatus
	for {
		got, err := unix.Wait4(t.TID, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || got == t.TID && !status.Stopped():
			return false
		case got == t.TID:
			return t.Ptrace(unix.PTRACE_DETACH, 0, deliver(int(status))) != nil
		default:
			return true
		}
	}
}

// deliver returns the signal at whose delivery a thread has stopped, and which it still has to get; 0 if it
// has stopped for another reason.
func deliver(status int) uintptr {
	stop := status >> 8 & 0xff
	if status>>16 != 0 || stop&^syscallStop == int(unix.SIGTRAP) {
		return 0
	}
	return uintptr(stop)
}

// restore restores registers and signal mask. It first stops a thread that runs because its system call
// does not end or it was frozen in the middle.
func (t *Tracee) restore() error {
	err := t.setMask(t.mask)
	if errors.Is(err, fs.ErrNotExist) { // it is not stopped
		if err = t.Ptrace(unix.PTRACE_INTERRUPT, 0, 0); err == nil {
			_, err = t.wait()
		}
		if err == nil {
			err = t.setMask(t.mask)
		}
	}
	if err == nil {
		err = t.setRegisters(&t.regs)
	}
	if err != nil {
		return fmt.Errorf("put the registers of thread %d back: %w", t.TID, err)
	}
	t.altered = false
	if t.wrote.End > 0 {
		zeros := make([]byte, t.wrote.End-t.wrote.Start)
		_ = t.write(t.wrote.Start, zeros) // nobody reads it; zero pages cost less to move
	}
	return nil
}

const ntPRStatus = 1 // NT_PRSTATUS of elf(5): the general registers

func (t *Tracee) getRegisters(r *registers) error {
	v := unix.Iovec{Base: (*byte)(unsafe.Pointer(r))}
	v.SetLen(int(unsafe.Sizeof(*r)))
	if err := t.Ptrace(unix.PTRACE_GETREGSET, ntPRStatus, uintptr(unsafe.Pointer(&v))); err != nil {
		return fmt.Errorf("read the registers: %w", err)
	}
	if v.Len != uint64(unsafe.Sizeof(*r)) {
		return fmt.Errorf("%w: it is a 32-bit process", ErrUntraceable)
	}
	return nil
}

func (t *Tracee) setRegisters(r *registers) error {
	v := unix.Iovec{Base: (*byte)(unsafe.Pointer(r))}
	v.SetLen(int(unsafe.Sizeof(*r)))
	if err := t.Ptrace(unix.PTRACE_SETREGSET, ntPRStatus, uintptr(unsafe.Pointer(&v))); err != nil {
		return fmt.Errorf("write the registers: %w", err)
	}
	return nil
}
