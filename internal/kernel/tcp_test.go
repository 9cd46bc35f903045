package kernel

import (
	"net"
	"os"
	"testing"
	"time"
)

func TestPendingConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	raw, err := l.(*net.TCPListener).File() // shares the socket; nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	before, err := PendingConnections(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := PendingConnections(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if n > before {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d pending connections, %d before, want more", n, before)
		}
	}
}

func FuzzParsePending(f *testing.F) {
	f.Add("  sl  local_address rem_address   st tx_queue rx_queue\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000002 00:00000000\n")
	f.Fuzz(func(t *testing.T, text string) {
		if n := parsePending(text); n < 0 {
			t.Errorf("%d connections", n)
		}
	})
}
