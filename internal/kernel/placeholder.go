package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PIDPlaceholder is an idle process that reserves the PID of another process that does not exist yet.
// Whoever has to know that PID, or needs a process in its namespaces and cgroups, gets the placeholder.
// When the other process is made, it gets the PID.
//
// The placeholder is a child of this process for which nobody has waited, and ends with this process. So
// whoever inherits this process's children learns of the end of a process with that PID, unless HandOver
// has given it to another process.
type PIDPlaceholder struct {
	pid    int
	handed bool // the PID is handed over: the placeholder was waited for, or is about to be
}

// StartPIDPlaceholder forks without exec (see Guard.start), so the placeholder has one thread and takes
// almost no memory of its own. network is its network namespace.
func StartPIDPlaceholder(network *os.File) (*PIDPlaceholder, error) {
	life, err := PidfdOpen(os.Getpid())
	if err != nil {
		return nil, err
	}
	defer life.Close()
	told, tell, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer told.Close()
	keep := [2]uintptr{min(life.Fd(), tell.Fd()), max(life.Fd(), tell.Fd())}
	pid, err := forkQuietly(func() (uintptr,
		unix.Errno) {
		return forkPlaceholder(life.Fd(), tell.Fd(), network.Fd(), keep)
	})
	_ = tell.Close() // so that the pipe ends with the placeholder
	if err != nil {
		return nil, err
	}
	p := &PIDPlaceholder{pid: int(pid)}
	if _, err := told.Read(make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("start a process in network namespace %s: %w", network.Name(), p.whyEnded())
	}
	return p, nil
}

// whyEnded collects a placeholder that has not reached its namespace.
func (p *PIDPlaceholder) whyEnded() error {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(p.pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || status.Signaled() {
			return errors.Join(err, errors.New("it was killed"))
		}
		return unix.Errno(status.ExitStatus())
	}
}

// forkQuietly calls a function that forks with all signals blocked.
func forkQuietly(fork func() (uintptr, unix.Errno)) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return 0, fmt.Errorf("block signals: %w", err)
	}
	pid, errno := fork()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return 0, fmt.Errorf("unblock signals: %w", err)
	}
	if errno != 0 {
		return 0, fmt.Errorf("fork: %w", errno)
	}
	return pid, nil
}

// forkPlaceholder returns in the calling process only. The placeholder reports when it is in place, and
// does not wait for anybody: nobody would come if the calling process were killed meanwhile.
//
//go:nosplit
//go:norace
func forkPlaceholder(life, tell, network uintptr, keep [2]uintptr) (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETNS, network, unix.CLONE_NEWNET, 0); errno != 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
	}
	// Nobody else could close the descriptors that the placeholder holds. An empty range, which ends before
	// it begins, is refused.
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE_RANGE, 0, keep[0]-1, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE_RANGE, keep[0]+1, keep[1]-1, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE_RANGE, keep[1]+1, ^uintptr(0)>>32, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, tell, uintptr(unsafe.Pointer(&keep)), 1)
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, tell, 0, 0)
	poll := unix.PollFd{Fd: int32(life), Events: unix.POLLIN}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, 0, 0, 0, 0)
		if errno == 0 && n == 1 {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}

// PID returns the reserved PID.
func (p *PIDPlaceholder) PID() int { return p.pid }

// End kills the placeholder, whose end is then reported to whoever inherits the children of this process.
// If its PID was to be handed over, and no child has that PID, End makes an ended child with it again.
func (p *PIDPlaceholder) End() error {
	if !p.handed || isChild(p.pid) {
		_ = unix.Kill(p.pid, unix.SIGKILL) // it may have ended
		return nil
	}
	err := p.endAgain()
	for end := time.Now().Add(takenPatience); errors.Is(err, unix.EEXIST) &&
		time.Now().Before(end); err = p.endAgain() {
		time.Sleep(takenPoll)
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("another process took PID %[1]d, so the engine does not learn that its "+
			"container has ended: "+
			"kill the shim of the container: %[2]w", p.pid, err)
	}
	if err != nil {
		return fmt.Errorf("end process %d again: %w", p.pid, err)
	}
	return nil
}

// Most processes that take a PID by chance are short-lived. The source's container may be frozen while End
// waits.
const (
	takenPatience = time.Second
	takenPoll     = 5 * time.Millisecond
)

func (p *PIDPlaceholder) endAgain() error {
	number := [1]int32{int32(p.pid)}
	args := cloneArgs{exitSignal: uint64(unix.SIGCHLD), setTID: uint64(uintptr(unsafe.Pointer(&number))),
		setTIDSize: 1}
	_, err := forkQuietly(func() (uintptr, unix.Errno) { return forkEnded(&args) })
	runtime.KeepAlive(&number)
	return err
}

// isChild reports whether a process is a child of this one, even one that has ended.
func isChild(pid int) bool {
	var info unix.Siginfo
	return unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == nil
}

// forkEnded returns in the calling process only.
//
//go:nosplit
//go:norace
func forkEnded(args *cloneArgs) (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
	}
}

// cloneArgs is struct clone_args as of Linux 5.5 (clone(2)).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize uint64
}

// HandOver gives the placeholder's PID to the first process of a PID namespace that another process makes
// next (clone3 with set_tid, in two namespaces; Linux 5.5). That process must be stopped in a system call,
// or before one, and is traced from when HandOver returns until it has made the system call; done then
// receives the result. The placeholder is killed at once, but its PID is free for a moment only. The kernel
// assigns PIDs in turn, so a process that forks in that time takes the PID if it is next. Then the system
// call fails with EEXIST.
func (p *PIDPlaceholder) HandOver(pid int) (done <-chan error, err error) {
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
		return nil, fmt.Errorf("end process %d: %w", p.pid, err)
	}
	begun, ended := make(chan error, 1), make(chan error, 1)
	go AsTracer(func() bool {
		t := &Tracee{PID: pid, TID: pid}
		err := t.stop()
		if err == nil {
			err = t.Ptrace(unix.PTRACE_SYSCALL, 0, 0)
		}
		begun <- err
		if err == nil {
			ended <- p.follow(t)
		}
		return !t.Seized
	})
	if err := <-begun; err != nil {
		return nil, fmt.Errorf("trace process %d: %w", pid, err)
	}
	return ended, nil
}

// follow follows the other process from one system call to the next, until the call that makes the process
// that gets the PID, or until its end.
func (p *PIDPlaceholder) follow(t *Tracee) error {
	for {
		signal, err := t.nextSyscall()
		if err != nil {
			return err
		}
		var call syscallInfo
		if signal == 0 {
			if call, err = t.syscallInfo(); err != nil {
				return err
			}
		}
		if call.op == syscallEntry && call.words[0] == unix.SYS_CLONE3 {
			var args cloneArgs
			if err := t.readArgs(call.words[1], call.words[2], &args); err != nil {
				return err
			}
			if args.flags&unix.CLONE_NEWPID != 0 && args.setTIDSize == 1 &&
				args.flags&unix.CLONE_SETTLS == 0 {
				return p.handOver(t, call.words[1], args)
			}
		}
		if err := t.Ptrace(unix.PTRACE_SYSCALL, 0, uintptr(signal)); err != nil {
			return err
		}
	}
}

// handOver changes the system call at whose entry the other process is, and frees the PID. The two PIDs are
// written to the only available place in its memory: that for thread-local storage, which the call does not
// request.
func (p *PIDPlaceholder) handOver(t *Tracee, at uint64, args cloneArgs) error {
	const inTLS, inSetTID = 56, 64
	var numbers [8]byte
	if err := t.read(args.setTID, numbers[:4]); err != nil {
		return err
	}
	binary.NativeEndian.PutUint32(numbers[4:], uint32(p.pid))
	told := binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, at+inTLS), 2)
	if err := errors.Join(t.write(at+inTLS, numbers[:]), t.write(at+inSetTID, told)); err != nil {
		return err
	}
	p.handed = true
	for {
		_, err := unix.Wait4(p.pid, nil, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for process %d: %w", p.pid, err)
		}
		break
	}
	if err := t.Ptrace(unix.PTRACE_SYSCALL, 0, 0); err != nil {
		return err
	}
	if _, err := t.nextSyscall(); err != nil {
		return err
	}
	result, err := t.syscallInfo()
	if err == nil && int64(result.words[0]) < 0 {
		err = fmt.Errorf("make a process with PID %d: %w", p.pid, syscall.Errno(-int64(result.words[0])))
	}
	return errors.Join(err, t.Release())
}

// nextSyscall waits for the next stop of a process on its way to the entry or exit of a system call. A
// signal stops the process, too, and is returned. nextSyscall does not collect an ended child, not even one
// that is killed while it is stopped.
func (t *Tracee) nextSyscall() (signal int, err error) {
	for {
		var info childInfo
		err := t.awaitChange(&info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT)
		if err != nil || isEnd(&info.Siginfo) {
			t.Seized = false
			return 0, errors.Join(err, errors.New("it has ended"))
		}
		err = t.awaitChange(&info, unix.WSTOPPED|unix.WNOHANG)
		if errors.Is(err, unix.ECHILD) || err == nil && info.Signo == 0 {
			continue // it was killed meanwhile; the next wait reports the end
		}
		if err != nil {
			return 0, err
		}
		switch status := info.status(); {
		case status == int(unix.SIGTRAP)|syscallStop:
			return 0, nil
		case status>>8 == eventStop:
			err = t.Ptrace(unix.PTRACE_SYSCALL, 0, 0)
		default:
			return status, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // killed meanwhile; the next wait reports the end
			return 0, err
		}
	}
}

// awaitChange waits for a change of the thread's state. With WNOHANG, info is zero if there was none.
func (t *Tracee) awaitChange(info *childInfo, options int) error {
	for {
		*info = childInfo{}
		err := unix.Waitid(unix.P_PID, t.TID, &info.Siginfo, options|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// childInfo is waitid(2)'s report about a child.
type childInfo struct{ unix.Siginfo }

// status is why a traced child has stopped: a signal, and the event of ptrace in the next byte (si_status
// in the kernel's include/uapi/asm-generic/siginfo.h, on 64-bit machines).
func (i *childInfo) status() int {
	const inStatus = 24
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(i), inStatus)))
}

// Reasons of SIGCHLD (sigaction(2)).
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// isEnd reports whether a wait for a child has reported its end. Whatever is requested, the kernel also
// reports stops if a thread of the requesting process traces the child.
func isEnd(info *unix.Siginfo) bool {
	return info.Code == cldExited || info.Code == cldKilled || info.Code == cldDumped
}

// ChildRuns reports whether a child of this process has not ended. It does not collect an ended child.
func ChildRuns(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && !isEnd(&info) // no report, or a stop
}

// syscallInfo is the kernel's report about the system call at which a process has stopped (struct
// ptrace_syscall_info, Linux 5.3): its number and arguments at the entry, or its result.
type syscallInfo struct {
	op    uint8
	_     [7]byte
	_     [2]uint64 // where
	words [8]uint64
}

const syscallEntry = 1 // PTRACE_SYSCALL_INFO_ENTRY

func (t *Tracee) syscallInfo() (syscallInfo, error) {
	var info syscallInfo
	if err := t.Ptrace(unix.PTRACE_GET_SYSCALL_INFO, unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info))); err != nil {
		return info, fmt.Errorf("look at a system call: %w", err)
	}
	return info, nil
}

// readArgs reads the arguments of clone3; programs may know fewer or more of them than this one.
func (t *Tracee) readArgs(at, size uint64, args *cloneArgs) error {
	if size < uint64(unsafe.Sizeof(*args)) {
		return nil
	}
	return t.read(at, unsafe.Slice((*byte)(unsafe.Pointer(args)), unsafe.Sizeof(*args)))
}
