package criu

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// TestRelief makes a connection stall: one end has a receive queue beyond its limit, has lost a packet for
// that reason, and waits for the other end's window before it reads. With more room the connection
// continues.
func TestRelief(t *testing.T) {
	const limit, piece = 4 << 20, 1000
	near, far := tcpPair(t, limit)
	toNear := limit / 2
	write(t, far, toNear)
	awaitData(t, near, toNear)
	// The queue takes more memory than its data has bytes. The piece is smaller than the unit of windows,
	// so far does not notice that it is beyond.
	control(t, near, func(fd int) error { return limitReceived(fd, toNear) })
	write(t, far, piece)
	toNear += piece
	toFar := fill(near)
	relief := NewRelief()
	for range 2 {
		if tight, err := relief.Give([]int{os.Getpid()}); err != nil || tight != 2 {
			t.Errorf("%d tight sockets, %v; want both", tight, err)
		}
	}
	// Room is given once: nearly an eighth of the queue's memory.
	if used, most := memoryOf(t, near); used > most || used < most/8*7 {
		t.Errorf("%d bytes of %d", used, most)
	}
	deadline := time.Now().Add(30 * time.Second)
	if err := near.SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() { read <- take(far, toFar+limit, deadline) }()
	write(t, near, limit)
	if err := <-read; err != nil {
		t.Errorf("the far end reads: %v", err)
	}
	if err := take(near, toNear, deadline); err != nil {
		t.Errorf("the near end reads: %v", err)
	}
	if tight, err := relief.Give([]int{os.Getpid()}); err != nil || tight != 0 {
		t.Errorf("%d tight sockets, %v; want none", tight, err)
	}
}

// tcpPair returns a connection whose near end has a limit for received data.
func tcpPair(t *testing.T, limit int) (near, far *net.TCPConn) {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = limitReceived(int(fd), limit) })
		if err == nil {
			err = failed
		}
		return err
	}}
	config.SetMultipathTCP(false)
	listener, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	outer, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outer.Close() })
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return accepted.(*net.TCPConn), outer.(*net.TCPConn)
}

// limitReceived sets a limit that the kernel must not change.
func limitReceived(fd, limit int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, limit/2)
}

func write(t *testing.T, conn *net.TCPConn, size int) {
	t.Helper()
	if _, err := conn.Write(make([]byte, size)); err != nil {
		t.Errorf("write: %v", err)
	}
}

// awaitData waits until this much data has been received.
func awaitData(t *testing.T, conn *net.TCPConn, size int) {
	t.Helper()
	received := 0
	for end := time.Now().Add(30 * time.Second); received < size &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
		control(t, conn, func(fd int) (err error) {
			received, err = unix.IoctlGetInt(fd, unix.SIOCINQ)
			return err
		})
	}
	if received != size {
		t.Fatalf("%d bytes were received, not %d", received, size)
	}
}

func take(conn *net.TCPConn, size int, deadline time.Time) error {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, conn, int64(size))
	return err
}

// fill writes until the socket accepts no more.
func fill(conn *net.TCPConn) (written int) {
	for block := make([]byte, 1<<16); ; {
		// the write reports an error
		_ = conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := conn.Write(block)
		written += n
		if err != nil {
			return written
		}
	}
}

func memoryOf(t *testing.T, conn *net.TCPConn) (used, limit int) {
	t.Helper()
	control(t, conn, func(fd int) (err error) {
		used, limit, err = kernel.ReceiveMemory(fd)
		return err
	})
	return used, limit
}

func control(t *testing.T, conn *net.TCPConn, do func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
