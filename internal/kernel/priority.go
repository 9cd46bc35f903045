package kernel

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Lowest is the niceness of what may take as long as it likes.
const Lowest = 19

// GiveWay lets others go before this goroutine, until its end: the niceness is its thread's, which ends with
// it. The kernel derives the priority at the disk from it (ioprio_set(2)).
func GiveWay(niceness int) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness) // without it all goes on as well
}
