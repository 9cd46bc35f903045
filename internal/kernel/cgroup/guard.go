package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Guard is a process that shares this process's descriptors, and that kills the processes of a cgroup when
// this process ends in any way. It shares the table of descriptors, not copies of them, so nothing that
// this process holds at any moment is closed before those processes are gone.
//
// It is for a process without which others must not continue: see package memory/pager.
type Guard struct {
	pid   int
	files []*os.File // in use by the guard: they stay open
}

// guardOrders are a guard's data. They are made before the guard, which cannot allocate and has a small
// stack.
type guardOrders struct {
	life uintptr   // pidfd of the process that it watches
	kill uintptr   // cgroup.kill (Linux 5.14), or the highest number if there is none
	path []byte    // of cgroup.procs, ending with 0
	text [256]byte // of cgroup.procs
}

const noDescriptor = ^uintptr(0)

// StartGuard starts the guard of this process and of the group's.
func StartGuard(c *Cgroup) (*Guard, error) {
	g := &Guard{}
	orders, err := g.open(c)
	if err == nil {
		err = g.start(orders)
	}
	if err != nil {
		g.closeFiles()
		return nil, fmt.Errorf("start a guard for cgroup %s: %w", c.freeze.dir, err)
	}
	return g, nil
}

func (g *Guard) open(c *Cgroup) (*guardOrders, error) {
	o := &guardOrders{kill: noDescriptor}
	life, err := kernel.PidfdOpen(os.Getpid())
	if err != nil {
		return o, err
	}
	g.files = append(g.files, life)
	o.life = life.Fd()
	procs := filepath.Join(c.freeze.dir, "cgroup.procs")
	if _, err := os.Stat(procs); err != nil {
		return o, err
	}
	o.path = append([]byte(procs), 0)
	if kill, err := os.OpenFile(filepath.Join(c.freeze.dir, "cgroup.kill"), os.O_WRONLY, 0); err == nil {
		g.files = append(g.files, kill)
		o.kill = kill.Fd()
	}
	return o, nil
}

// start forks without exec, which would give the new process descriptors of its own. Go's runtime does not
// exist in the new process, so it only makes system calls, and gets no signals. There is nobody to whom it
// could report errors.
func (g *Guard) start(o *guardOrders) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	pid, errno := forkGuard(o)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return fmt.Errorf("unblock signals: %w", err)
	}
	if errno != 0 {
		return fmt.Errorf("fork: %w", errno)
	}
	g.pid = int(pid)
	return nil
}

// forkGuard returns in the calling process only.
//
//go:nosplit
//go:norace
func forkGuard(o *guardOrders) (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_FILES|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	guard(o)
	return 0, 0 // never
}

// guard is the main function of the guard. It kills every process of the group again and again until there
// is none, which also ends processes forked meanwhile; only then does it release the descriptors.
//
//go:nosplit
//go:norace
func guard(o *guardOrders) {
	poll := unix.PollFd{Fd: int32(o.life), Events: unix.POLLIN}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, 0, 0, 0, 0)
		if errno == 0 && n == 1 {
			break
		}
	}
	one := byte('1')
	// 10 s: what is listed after that no longer lives, such as a zombie of version 1
	for round := 0; round < 2000; round++ {
		if o.kill != noDescriptor {
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, o.kill, uintptr(unsafe.Pointer(&one)), 1)
		}
		if killListed(o) == 0 {
			break
		}
		nap(5e6)
	}
	nap(1e9) // for groups below of version 1: their processes end with the first one of their pid namespace
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
}

// killListed sends SIGKILL to the processes at the beginning of a cgroup.procs and returns how many there
// were. A removed group has none. killListed opens the file each time, because version 1 caches the
// contents for an open file.
//
//go:nosplit
//go:norace
func killListed(o *guardOrders) int {
	at := unix.AT_FDCWD
	fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(&o.path[0])),
		unix.O_RDONLY, 0, 0, 0)
	if errno != 0 {
		return 0
	}
	n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&o.text)), uintptr(len(o.text)))
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	if errno != 0 {
		return 0
	}
	found, pid := 0, uintptr(0)
	for i := 0; i < int(n) && i < len(o.text); i++ {
		switch c := o.text[i]; {
		case c >= '0' && c <= '9':
			pid = pid*10 + uintptr(c-'0')
		// 0 is a process of another PID namespace; a truncated number ends without a newline
		case pid > 1:
			_, _, _ = unix.RawSyscall(unix.SYS_KILL, pid, uintptr(unix.SIGKILL), 0)
			found, pid = found+1, 0
		default:
			found, pid = found+1, 0
		}
	}
	return found
}

//go:nosplit
//go:norace
func nap(nanoseconds int64) {
	t := unix.Timespec{Sec: nanoseconds / 1e9, Nsec: nanoseconds % 1e9}
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// PID returns the guard's PID.
func (g *Guard) PID() int { return g.pid }

// Disarm ends the guard: this process may end now.
func (g *Guard) Disarm() error {
	defer g.closeFiles()
	if err := unix.Kill(g.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the guard, process %d: %w", g.pid, err)
	}
	for {
		_, err := unix.Wait4(g.pid, nil, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil && !errors.Is(err, unix.ECHILD) {
			return fmt.Errorf("wait for the guard, process %d: %w", g.pid, err)
		}
		return nil
	}
}

// Wait returns when the guard has ended, which happens before the end of this process only if the guard is
// killed.
func (g *Guard) Wait() error {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, g.pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (g *Guard) closeFiles() {
	for _, f := range g.files {
		_ = f.Close() // only opened to be held
	}
	g.files = nil
}
