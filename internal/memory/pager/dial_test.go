package pager

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGivenUpAtTheEnd: what the pager has answered counts, also if it has nothing more to do then and ends at once.
func TestGivenUpAtTheEnd(t *testing.T) {
	for range 50 { // which of both is seen first is up to chance
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		other := os.NewFile(uintptr(fds[1]), "pager")
		file := os.NewFile(uintptr(fds[0]), "client")
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		c := &lateClient{conn: conn.(*net.UnixConn), answers: make(chan string, 1), over: make(chan struct{})}
		answered := make(chan error, 1)
		go func() { answered <- c.GiveUp(t.Context(), true) }()
		if _, err := other.Read(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		c.answers <- ""
		close(c.over)
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		_ = other.Close()
		_ = file.Close()
		_ = conn.Close()
	}
}
