package kernel

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

const kcmpVM = 1 // KCMP_VM of include/uapi/linux/kcmp.h

// ShareMemory reports whether two processes have the same address space, as after vfork(2) until the child
// calls execve. Error: fs.ErrNotExist when one is gone.
func ShareMemory(pid1, pid2 int) (bool, error) {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpVM, 0, 0, 0)
	if errors.Is(errno, unix.ESRCH) {
		return false, fmt.Errorf("compare the memory of processes %d and %d: %w", pid1, pid2, fs.ErrNotExist)
	}
	if errno != 0 {
		return false, fmt.Errorf("compare the memory of processes %d and %d: %w", pid1, pid2, errno)
	}
	return order == 0, nil
}
