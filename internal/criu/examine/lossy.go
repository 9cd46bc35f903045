package examine

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
)

// checkEventfd finds counters that CRIU would restore wrongly: CRIU makes them with eventfd(2), which takes
// 32 bits, and without EFD_SEMAPHORE (criu/eventfd.c of 4.2). Kernels before 6.5 do not report semaphores.
func checkEventfd(info fdinfo) finding {
	count, err := strconv.ParseUint(info.values["eventfd-count"], 16, 64)
	switch {
	case info.values["eventfd-semaphore"] == "1":
		return finding{what: "eventfd with EFD_SEMAPHORE", why: "CRIU would make an ordinary counter of it",
			remedy: "use a semaphore or a pipe in the application"}
	case err == nil && count > 0xffffffff:
		return finding{what: fmt.Sprintf("eventfd with a count of %d", count),
			why: "CRIU would cut it to 32 bits", remedy: "try again when the application has read it"}
	}
	return finding{}
}

// checkLease finds leases that the copy of the container's files would break. Opening the file waits until
// the holder has given up the lease, which a frozen process cannot do (fcntl(2), F_SETLEASE).
func checkLease(d descriptors.Descriptor, info fdinfo) finding {
	for _, lock := range info.locks {
		fields := strings.Fields(lock) // 1: LEASE ACTIVE WRITE 4711 00:2b:55 0 EOF (proc_pid_fdinfo(5))
		if len(fields) < 4 || fields[1] != "LEASE" {
			continue
		}
		if fields[2] != "ACTIVE" {
			return finding{what: "lease on " + d.Target + " that another process has asked to break",
				why:    "CRIU cannot carry a lease that is being broken",
				remedy: "try again when the application has given up the lease"}
		}
		if fields[3] == "WRITE" {
			return finding{what: "write lease on " + d.Target,
				why:    "the copy of the file would wait until the lease is given up",
				remedy: "turn leases off in the application"}
		}
	}
	return finding{}
}

// checkUnixQueue finds queued data of a unix socket that CRIU cannot dump (criu/sk-unix.c and
// criu/sk-queue.c of 4.2). It is gone as soon as the application reads it.
func (x *examination) checkUnixQueue(fd int, inode uint32) finding {
	unsent, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	if err == nil && unsent > 0 && x.waiting[inode] != 0 {
		return finding{what: "unix socket with data, whose connection is not accepted yet",
			why:    "CRIU cannot dump the data that waits in it",
			remedy: "try again when the application has accepted the connection"}
	}
	for _, option := range []int{unix.SO_PASSCRED, unix.SO_PASSPIDFD} {
		on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		if err != nil || on == 0 {
			continue
		}
		if unread, err := unix.IoctlGetInt(fd, unix.TIOCINQ); err == nil && unread > 0 {
			return finding{what: "unix socket with messages that tell who sent them (SO_PASSCRED, " +
				"SO_PASSPIDFD)",
				why: "CRIU cannot dump such messages", remedy: "try again when the application has read them"}
		}
	}
	return finding{}
}
