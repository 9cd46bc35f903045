package pager

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestGivenUpAtTheEnd: the pager's answer counts, even if it has nothing more to do then and ends at once.
func TestGivenUpAtTheEnd(t *testing.T) {
	for range 20 { // which event is seen first is random
		client, pager := connected(t)
		c := &remoteClient{conn: client, answers: make(chan string, 1), over: make(chan struct{})}
		fill(t, client)
		answered := make(chan error, 1)
		go func() { answered <- c.GiveUp(t.Context(), true) }()
		for c.writing.TryLock() { // the order is being written, and waits for room
			c.writing.Unlock()
			runtime.Gosched()
		}
		c.answers <- ""
		close(c.over)
		go func() { _, _ = io.Copy(io.Discard, pager) }()
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
}

// connected returns both ends of a connection.
func connected(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "end")
		conn, err := net.FileConn(file)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ends[i] = conn.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// fill writes to a connection until it is full.
func fill(t *testing.T, conn *net.UnixConn) {
	t.Helper()
	err := conn.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	for err == nil {
		_, err = conn.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if err := conn.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}
