package supervisor

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSupervisor speaks to a socket as systemd's.
func TestSupervisor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	s := New(slog.New(slog.DiscardHandler))
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC"} {
		if value, found := os.LookupEnv(name); found {
			t.Errorf("%s=%s is left for runc", name, value)
		}
	}
	s.Tell("READY=1")
	heard(t, socket, "READY=1")

	ctx, cancel := context.WithCancel(t.Context())
	var looks int
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Watch(ctx, func() { looks++ })
	}()
	heard(t, socket, "WATCHDOG=1")
	heard(t, socket, "WATCHDOG=1")
	cancel()
	<-ended
	if looks < 2 {
		t.Errorf("two signs of life after %d looks", looks)
	}
}

// TestHangingAgentGivesNoSign: the sign of life waits for the agent's locks.
func TestHangingAgentGivesNoSign(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	s := &Supervisor{socket: path, watchdog: time.Millisecond, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended, goOn, looks := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(ended)
		s.Watch(ctx, func() {
			select {
			case looks <- struct{}{}:
			default:
			}
			<-goOn
		})
	}()
	<-looks
	if err := socket.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := socket.Read(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes of an agent whose lock is held for ever", n)
	}
	cancel()
	close(goOn)
	<-ended
}

// TestNoSupervisor: an agent that systemd has not started tells nobody.
func TestNoSupervisor(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	s := New(slog.New(slog.DiscardHandler))
	s.Tell("READY=1")
	s.Watch(t.Context(), func() { t.Error("a sign of life is prepared for nobody") })
}

func heard(t *testing.T, socket *net.UnixConn, want string) {
	t.Helper()
	if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 100)
	n, err := socket.Read(message)
	if err != nil || string(message[:n]) != want {
		t.Fatalf("heard %q, %v; want %s", message[:n], err, want)
	}
}
