package kernel

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Lowest is the niceness of work that may take any time.
const Lowest = 19

// GiveWay lowers the priority of this goroutine until its end: the niceness is its thread's, and the thread
// ends with the goroutine. The kernel derives the disk priority from it (ioprio_set(2)).
func GiveWay(niceness int) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness) // work continues without it as well
}
