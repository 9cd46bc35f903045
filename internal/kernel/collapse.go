package kernel

import (
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/unix"
)

const madviseCollapse = 25 // MADV_COLLAPSE of include/uapi/asm-generic/mman-common.h

// Collapse makes the kernel put the pages between two addresses into huge pages at once (Linux 6.1), which
// takes half a millisecond per 2 MiB; page faults of the process wait for each. Write-protected memory
// cannot be collapsed.
func (a *AddressSpace) Collapse(start, end uint64) error {
	pidfd, err := PidfdOpen(a.pid)
	if err != nil {
		return a.failed("open it", err)
	}
	defer pidfd.Close()
	if f, err := a.open("stat"); err != nil { // then another process has its PID
		return err
	} else if err := f.Close(); err != nil {
		return err
	}
	remote := unix.RemoteIovec{Base: uintptr(start), Len: int(end - start)}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, pidfd.Fd(), uintptr(unsafe.Pointer(&remote)),
		1, madviseCollapse, 0, 0)
	if errno == unix.ESRCH {
		return fmt.Errorf("memory of process %d: %w", a.pid, fs.ErrNotExist)
	}
	if errno != 0 {
		return fmt.Errorf("memory of process %d: huge pages from %#x to %#x: %w", a.pid, start, end, errno)
	}
	if uint64(n) != end-start {
		return fmt.Errorf("memory of process %d: huge pages from %#x to %#x: only %d bytes", a.pid, start,
			end, n)
	}
	return nil
}
