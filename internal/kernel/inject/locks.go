package inject

import (
	"bytes"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// TakeRecordLocks takes locks on behalf of a process that CRIU is restoring. The process waits in a system
// call, does not use the memory below its stack pointer, and must not be traced. If the caller dies
// meanwhile, the process cannot continue.
func TakeRecordLocks(pid int, locks []kernel.RecordLock) error {
	var err error
	AsTracer(func() bool {
		t := &Tracee{PID: pid, TID: pid}
		err = takeLocks(t, locks)
		if e := t.Release(); err == nil {
			err = e
		}
		return !t.Seized
	})
	if err != nil {
		return fmt.Errorf("take locks as process %d: %w", pid, kernel.WhenGone(err))
	}
	return nil
}

// lockRoom is the distance below the stack pointer of a lock's description: more than a function may use
// there.
const lockRoom = 512

func takeLocks(t *Tracee, locks []kernel.RecordLock) error {
	if err := t.Ptrace(unix.PTRACE_SEIZE, 0, unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return fmt.Errorf("seize it: %w%s", err, tracedBy(t.PID))
	}
	t.Seized = true
	if err := stopInCall(t); err != nil {
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
func stopInCall(t *Tracee) error {
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
