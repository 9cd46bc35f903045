package agent

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
	s := newSupervisor(slog.New(slog.DiscardHandler))
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC"} {
		if value, found := os.LookupEnv(name); found {
			t.Errorf("%s=%s is left for runc", name, value)
		}
	}
	s.tell("READY=1")
	heard(t, socket, "READY=1")

	ctx, cancel := context.WithCancel(t.Context())
	var looks int
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.watch(ctx, func() { looks++ })
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
	a := newTestAgent(t)
	a.locations = newLocations(a)
	done := make(chan struct{})
	a.moves.mu.Lock()
	go func() {
		defer close(done)
		a.alive()
	}()
	select {
	case <-done:
		t.Error("an agent whose lock is held for ever seems alive")
	case <-time.After(100 * time.Millisecond):
	}
	a.moves.mu.Unlock()
	<-done
}

// TestNoSupervisor: an agent that systemd has not started tells nobody.
func TestNoSupervisor(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	s := newSupervisor(slog.New(slog.DiscardHandler))
	s.tell("READY=1")
	s.watch(t.Context(), func() { t.Error("a sign of life is prepared for nobody") })
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
