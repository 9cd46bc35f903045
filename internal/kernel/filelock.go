package kernel

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RecordLock is a lock on a part of a file that belongs to a process (fcntl(2), F_SETLK).
type RecordLock struct {
	FD     int // descriptor by which the process has taken it
	Write  bool
	Start  int64
	Length int64 // 0: to the end of the file, however long that becomes
}

// RecordLocks lists the locks that a process has taken by one of its descriptors (proc_pid_fdinfo(5)).
func RecordLocks(pid, fd int) ([]RecordLock, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return nil, fmt.Errorf("look for locks of process %d: %w", pid, err)
	}
	var locks []RecordLock
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "lock:"); ok {
			lock, ok, err := parseRecordLock(text)
			if err != nil {
				return nil, fmt.Errorf("look for locks of process %d: %w", pid, err)
			}
			if lock.FD = fd; ok {
				locks = append(locks, lock)
			}
		}
	}
	return locks, nil
}

// parseRecordLock parses a line such as "1: POSIX ADVISORY WRITE 4711 00:2b:55 0 EOF". It ignores locks of
// other kinds.
func parseRecordLock(text string) (lock RecordLock, ok bool, err error) {
	fields := strings.Fields(text)
	if len(fields) != 8 {
		return lock, false, fmt.Errorf("a lock has an unknown format: %.200q", text)
	}
	if fields[1] != "POSIX" {
		return lock, false, nil
	}
	lock.Write = fields[3] == "WRITE"
	if lock.Start, err = strconv.ParseInt(fields[6], 10, 64); err != nil {
		return lock, false, err
	}
	if fields[7] != "EOF" {
		var end int64
		end, err = strconv.ParseInt(fields[7], 10, 64)
		lock.Length = end - lock.Start + 1
	}
	return lock, err == nil, err
}

// TakeRecordLocks takes locks on behalf of a process that CRIU is restoring. The process waits in a system
// call, does not use the memory below its stack pointer, and must not be traced. If the caller dies
// meanwhile, the process cannot continue.
func TakeRecordLocks(pid int, locks []RecordLock) error {
	var err error
	AsTracer(func() bool {
		t := &Tracee{PID: pid, TID: pid}
		err = t.takeLocks(locks)
		if e := t.Release(); err == nil {
			err = e
		}
		return !t.Seized
	})
	if err != nil {
		return fmt.Errorf("take locks as process %d: %w", pid, whenGone(err))
	}
	return nil
}

// lockRoom is the distance below the stack pointer of a lock's description: more than a function may use
// there.
const lockRoom = 512

func (t *Tracee) takeLocks(locks []RecordLock) error {
	if err := t.Ptrace(unix.PTRACE_SEIZE, 0, unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return fmt.Errorf("seize it: %w%s", err, tracedBy(t.PID))
	}
	t.Seized = true
	if err := t.stopInCall(); err != nil {
		return err
	}
	if err := t.Ptrace(unix.PTRACE_GETSIGMASK, unsafe.Sizeof(t.mask),
		uintptr(unsafe.Pointer(&t.mask))); err != nil {
		return fmt.Errorf("read the signal mask: %w", err)
	}
	at := (t.regs.stackPointer() - lockRoom) &^ 15
	for _, lock := range locks {
		flock := unix.Flock_t{Type: unix.F_RDLCK, Whence: unix.SEEK_SET, Start: lock.Start, Len: lock.Length}
		if lock.Write {
			flock.Type = unix.F_WRLCK
		}
		if err := t.write(at, unsafe.Slice((*byte)(unsafe.Pointer(&flock)),
			unsafe.Sizeof(flock))); err != nil {
			return err
		}
		if _, err := t.syscall(unix.SYS_FCNTL, uint64(lock.FD), unix.F_SETLK, at); err != nil {
			return fmt.Errorf("lock descriptor %d from %d, %d bytes: %w", lock.FD, lock.Start, lock.Length,
				err)
		}
	}
	return nil
}

// stopInCall stops the thread in the system call in which it waits, or before it, and finds the call's
// instruction.
func (t *Tracee) stopInCall() error {
	for pause := ShortestRun; ; pause = min(pause*2, LongestRun) {
		err := t.Ptrace(unix.PTRACE_INTERRUPT, 0, 0)
		if err == nil {
			err = t.AwaitStop()
		}
		if err == nil {
			err = t.getRegisters(&t.regs)
		}
		if err != nil {
			return err
		}
		length := uint64(len(syscallInstruction))
		// the kernel may have set the thread back to it
		for _, at := range []uint64{*t.regs.instruction() - length, *t.regs.instruction()} {
			var is [len(syscallInstruction)]byte
			if t.read(at, is[:]) == nil && bytes.Equal(is[:], syscallInstruction[:]) {
				t.gadget.syscall = at
				return nil
			}
		}
		if pause == LongestRun {
			return fmt.Errorf("%w: it is in no system call", ErrUntraceable)
		}
		if err := t.Ptrace(unix.PTRACE_CONT, 0, 0); err != nil {
			return err
		}
		time.Sleep(pause)
	}
}
