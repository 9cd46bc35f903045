package kernel

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inOwnNamespace moves the test to a network namespace of its own, with loopback up.
func inOwnNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		t.Fatal(err)
	}
}

// TestTCPWatch counts connections that nobody accepts, in both families. They use loopback, so the other
// counts stay zero.
func TestTCPWatch(t *testing.T) {
	inOwnNamespace(t)
	w, err := OpenTCPWatch(unix.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	wanted := 0
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		for range 3 {
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			wanted++
		}
		var found int
		for until := time.Now().Add(5 * time.Second); time.Now().Before(until) && found != wanted; {
			if found, err = w.Unaccepted(); err != nil {
				t.Fatal(err)
			}
		}
		all, err := w.UnderWay()
		if err != nil || found != wanted || all != (TCPUnderWay{Unaccepted: wanted}) {
			t.Errorf("%s: %d, %+v, %v; want %d", address, found, all, err, wanted)
		}
	}
}

func TestTCPWatchOfNobody(t *testing.T) {
	if _, err := OpenTCPWatch(1 << 22); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// diagMessage makes a struct inet_diag_msg of IPv4.
func diagMessage(state, repeated byte, local, remote [4]byte, received, sent, inode uint32) []byte {
	b := make([]byte, inetDiagMessage)
	b[0], b[1], b[3] = unix.AF_INET, state, repeated
	copy(b[8:], local[:])
	copy(b[24:], remote[:])
	binary.NativeEndian.PutUint32(b[56:], received)
	binary.NativeEndian.PutUint32(b[60:], sent)
	binary.NativeEndian.PutUint32(b[68:], inode)
	return b
}

func TestTCPUnderWayCounts(t *testing.T) {
	own, peer, loopback := [4]byte{10, 88, 1, 2}, [4]byte{10, 99, 1, 2}, [4]byte{127, 0, 0, 1}
	var found tcpLook
	for _, message := range [][]byte{
		diagMessage(tcpListening, 0, own, [4]byte{}, 3, 128, 7),
		diagMessage(tcpListening, 0, own, [4]byte{}, 4, 128, 8),
		diagMessage(tcpSynReceived, 0, own, peer, 0, 0, 0),
		diagMessage(tcpSynReceived, 1, own, peer, 0, 0, 0),
		diagMessage(tcpSynReceived, hopeless, own, peer, 0, 0, 0),
		diagMessage(tcpFinWait1, 0, own, peer, 0, 1001, 0),
		diagMessage(tcpLastAck, 0, own, peer, 0, 1, 0),
		diagMessage(tcpClosing, 1, own, peer, 0, 0, 0),
		diagMessage(tcpFinWait1, hopeless, own, peer, 0, 0, 0),
		diagMessage(tcpFinWait1, 0, own, peer, 0, 1, 9), // half closed, and open in a process
		diagMessage(tcpFinWait1, 0, loopback, loopback, 0, 1, 0),
		diagMessage(tcpLastAck, 0, own, own, 0, 1, 0),
		diagMessage(tcpSynReceived, 0, loopback, loopback, 0, 0, 0),
		diagMessage(tcpFinWait1, 0, loopback, loopback, 0, 1, 9),
	} {
		if err := found.add(message); err != nil {
			t.Error(err)
		}
	}
	if want := (TCPUnderWay{HalfOpen: 2, Unaccepted: 7, Ending: 3, Undelivered: 1,
		UndeliveredBytes: 1002, Within: 3}); found.TCPUnderWay != want || len(found.within) != want.Within {
		t.Errorf("%+v, want %+v", found, want)
	}
}

// TestTCPWithinSince distinguishes connections within a namespace by their cookies.
func TestTCPWithinSince(t *testing.T) {
	look := func(cookies ...uint64) []uint64 {
		var found tcpLook
		for _, cookie := range cookies {
			message := diagMessage(tcpFinWait1, 0, [4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 1}, 0, 1001, 0)
			binary.NativeEndian.PutUint64(message[inetDiagCookie:], cookie)
			if err := found.add(message); err != nil {
				t.Fatal(err)
			}
		}
		return found.within
	}
	var w TCPWatch
	w.notice(look(1, 2, 3))
	between := time.Now()
	w.notice(look(2, 3, 4))
	if now := time.Now(); w.WithinSince(time.Time{}) != 0 || w.WithinSince(between) != 2 ||
		w.WithinSince(now) != 3 {
		t.Errorf("%d, %d, %d; want 0, 2, 3", w.WithinSince(time.Time{}), w.WithinSince(between),
			w.WithinSince(now))
	}
	w.notice(nil)
	w.notice(look(2))
	if found := w.WithinSince(between); found != 0 {
		t.Errorf("one that came back counts as %d that have been there", found)
	}
}

func FuzzTCPDiag(f *testing.F) {
	b := make([]byte, netlinkHeader, netlinkHeader+inetDiagMessage)
	binary.NativeEndian.PutUint32(b, netlinkHeader+inetDiagMessage)
	binary.NativeEndian.PutUint16(b[4:], tcpDiagGetSock)
	f.Add(append(b, diagMessage(tcpSynReceived, 0, [4]byte{10, 1, 1, 1}, [4]byte{10, 1, 1, 2}, 0, 0, 0)...))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var found tcpLook
		_, _ = parseDiag(b, tcpDiagGetSock, found.add) // it must not panic
	})
}

func BenchmarkTCPWatch(b *testing.B) {
	w, err := OpenTCPWatch(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = w.Close() })
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if _, err := w.UnderWay(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("listening", func(b *testing.B) {
		for b.Loop() {
			if _, err := w.Unaccepted(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
