package examine

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
)

// CRIU cannot dump MPTCP sockets (criu/sockets.c, "Unsupported proto 262"). Servers built with Go 1.24 or
// later listen with MPTCP by default, but a connection from a client without MPTCP is a plain TCP socket
// (net/mptcp/protocol.c, mptcp_stream_accept). So a listener is replaced by a plain TCP listener before the
// dump, and only MPTCP connections are obstacles to a move.

const multipathRemedy = "set GODEBUG=multipathtcp=0 in the container's environment, " +
	"or turn MPTCP off in the application"

// ReplaceMultipath replaces the MPTCP listeners of processes, which procs lists, by TCP listeners. The
// processes run meanwhile. Errors are those of inject.ReplaceListener: the container continues, with the
// listeners that were not replaced.
func ReplaceMultipath(ctx context.Context, procs func() ([]int, error)) error {
	pids, err := procs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		err := replaceMultipath(ctx, pid, procs)
		if err != nil && !descriptors.IsGone(err) { // a process that has ended has no listeners
			return fmt.Errorf("%w; %s", err, multipathRemedy)
		}
	}
	return nil
}

func replaceMultipath(ctx context.Context, pid int, procs func() ([]int, error)) error {
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		return err
	}
	defer pidfd.Close()
	fds, err := descriptors.List(pid)
	if err != nil {
		return err
	}
	for _, d := range fds {
		if _, ok := socketInode(d.Target); !ok {
			continue
		}
		fd, err := kernel.PidfdGetfd(pidfd, d.FD)
		if err != nil {
			continue // closed meanwhile
		}
		listens := isMultipath(fd) && isListening(fd)
		_ = unix.Close(fd)
		if !listens {
			continue
		}
		if err := inject.ReplaceListener(ctx, pid, d.FD, procs); err != nil {
			return err
		}
	}
	return nil
}

func isMultipath(fd int) bool {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && protocol == inject.ProtocolMPTCP
}

func isListening(fd int) bool {
	listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && listening != 0
}

// checkMultipath finds MPTCP sockets that ReplaceMultipath cannot replace.
func (x *examination) checkMultipath(t *task, fd int, d descriptors.Descriptor) finding {
	f := finding{remedy: multipathRemedy}
	shares, err := inject.SharesPort(t.PID, fd)
	obstacle := inject.CheckListener(t.PID, fd)
	switch {
	case !isListening(fd):
		f.what, f.why = "MPTCP socket", "CRIU cannot dump MPTCP connections"
	case err == nil && shares:
		f.what = "MPTCP listener that shares its port (SO_REUSEPORT)"
		f.why = "Godwit can replace a listener only if no other listener shares its port"
	case x.holders(d.Target) > 1:
		f.what = "MPTCP listener of several processes"
		f.why = "Godwit can replace a listener only if a single process has it open"
	case obstacle != nil && !descriptors.IsGone(obstacle): // otherwise the process has ended
		f.what, f.why = "MPTCP listener that cannot be replaced", obstacle.Error()
	default:
		return finding{}
	}
	return f
}

// holders counts the processes that have an open file.
func (x *examination) holders(target string) int {
	n := 0
	for _, t := range x.tasks {
		for _, d := range t.fds {
			if d.Target == target {
				n++
				break
			}
		}
	}
	return n
}
