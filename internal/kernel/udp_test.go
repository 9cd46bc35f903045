package kernel

import (
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestUnreadDatagrams(t *testing.T) {
	// The test uses its own thread: the first thread, by which a process is identified, may have been left
	// in the network namespace of another test.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unread := func() int64 {
		t.Helper()
		n, err := UnreadDatagrams(unix.Gettid())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	before := unread()
	if _, err := socket.WriteTo([]byte("waits"), socket.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	// a busy kernel delivers later
	for until := time.Now().Add(5 * time.Second); unread() <= before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d bytes wait when a datagram has come, %d before", unread(), before)
		}
	}
	if _, _, err := socket.ReadFrom(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	// Other programs of this network namespace may get datagrams, too, and read them.
	for until := time.Now().Add(5 * time.Second); unread() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d bytes wait when it is read, %d before", unread(), before)
		}
	}
}

func FuzzParseUnread(f *testing.F) {
	f.Add("  sl  local_address rem_address   st tx_queue rx_queue\n  1: 0100007F:1B59 00000000:0000 07 " +
		"00000000:00000300 00:00000000\n")
	f.Add("1 2 3 4 :ffffffffffff\n")
	f.Fuzz(func(t *testing.T, text string) {
		if n := parseUnread(text); n < 0 {
			t.Errorf("%d bytes", n)
		}
	})
}
