package criu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A lazy restore passes the userfaultfds of the processes to a listener on a unix stream socket in CRIU's
// work directory (criu/uffd.c, criu/pie/restorer.c). For each process it sends an int32 in the machine's
// byte order, its PID as in the names of the images, and then, in a separate message, one byte with the
// descriptor. A process without memory (a zombie) has a negative PID and no descriptor. When the memory of
// all processes is registered, and before any of them runs, it sends a uint32 that is not a PID. If the
// connection ends before that, the restore has failed.
const (
	lazySocket = "lazy-pages.socket"
	lazyEnd    = 0x52535446 // LAZY_PAGES_RESTORE_FINISHED
)

// maxPID is the largest PID of Linux (PID_MAX_LIMIT).
const maxPID = 1 << 22

// LazyListener waits for the only connection of a lazy restore.
type LazyListener struct {
	listener *net.UnixListener
}

// ListenLazy makes the socket to which a lazy restore with this work directory connects. It replaces an old
// socket.
func ListenLazy(workDir string) (*LazyListener, error) {
	dir, err := os.Open(workDir)
	if err != nil {
		return nil, fmt.Errorf("listen for a lazy restore: %w", err)
	}
	defer dir.Close()
	// Through the descriptor, because a socket's path is short (107 bytes, unix(7)) and the path of the
	// work directory may be long.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), lazySocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for a lazy restore: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for a lazy restore in %s: %w", workDir, err)
	}
	l.SetUnlinkOnClose(false) // by then the number may mean another directory
	if err := os.Chmod(filepath.Join(workDir, lazySocket), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for a lazy restore: %w", err), l.Close())
	}
	return &LazyListener{listener: l}, nil
}

// Accept waits for the restore, and then stops listening.
func (l *LazyListener) Accept(ctx context.Context) (*LazyRestore, error) {
	stop := context.AfterFunc(ctx, func() { _ = l.listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, err := l.listener.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("wait for a lazy restore: %w", firstOf(ctx.Err(), err))
	}
	_ = l.listener.Close() // there is only one connection
	return &LazyRestore{conn: c}, nil
}

// Close stops listening.
func (l *LazyListener) Close() error {
	if err := l.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// LazyRestore is the connection of a lazy restore.
type LazyRestore struct {
	conn *net.UnixConn
}

// LazyTask is one process of a lazy restore.
type LazyTask struct {
	PID    int // as in the names of the images
	Faults int // its userfaultfd, which the receiver closes; -1 if it has no memory
}

// ErrRestoreFailed says that a lazy restore was given up before its processes ran.
var ErrRestoreFailed = errors.New("the restore failed before its processes ran")

// Next returns the next process. False, without an error, means the end of the list: the memory of all
// processes is registered, and they will run now.
func (r *LazyRestore) Next() (LazyTask, bool, error) {
	var word [4]byte
	if _, err := io.ReadFull(r.conn, word[:]); err != nil {
		return LazyTask{}, false, fmt.Errorf("lazy restore: %w: %w", ErrRestoreFailed, err)
	}
	task, more, err := parseLazyWord(word)
	if err != nil || !more || task.Faults < 0 {
		return task, more, err
	}
	if task.Faults, err = r.descriptor(); err != nil {
		return LazyTask{}, false, fmt.Errorf("lazy restore: userfaultfd of process %d: %w", task.PID, err)
	}
	return task, true, nil
}

// parseLazyWord parses a PID, or the end of the list.
func parseLazyWord(word [4]byte) (task LazyTask, more bool, err error) {
	n := binary.NativeEndian.Uint32(word[:])
	if n == lazyEnd {
		return task, false, nil
	}
	switch pid := int(int32(n)); {
	case pid > 0 && pid <= maxPID:
		return LazyTask{PID: pid}, true, nil
	case pid < 0 && pid >= -maxPID:
		return LazyTask{PID: -pid, Faults: -1}, true, nil
	default:
		return task, false, fmt.Errorf("lazy restore: a process with number %d", pid)
	}
}

// descriptor reads exactly the one byte that comes with a descriptor.
func (r *LazyRestore) descriptor() (int, error) {
	var one [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(one[:], oob)
	if err != nil || n == 0 {
		return -1, errors.Join(ErrRestoreFailed, err)
	}
	fds, err := descriptorsOf(oob[:oobn])
	if err == nil && (n != 1 || flags&unix.MSG_CTRUNC != 0 || len(fds) != 1) {
		err = fmt.Errorf("a message of %d bytes with %d descriptors, want one of each", n, len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd) // the earlier error counts
		}
		return -1, err
	}
	return fds[0], nil
}

// descriptorsOf extracts the descriptors from control data.
func descriptorsOf(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, nil
}

// Close closes the connection. Before the end of the list, that makes the restore fail.
func (r *LazyRestore) Close() error { return r.conn.Close() }
