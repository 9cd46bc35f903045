// Package supervisor reports the state of this process to systemd, and feeds systemd's watchdog:
// sd_notify(3), sd_watchdog_enabled(3).
package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// Supervisor is the service manager that started this process, if it wants to be told of its state.
type Supervisor struct {
	socket   string        // empty: nobody wants to be told
	watchdog time.Duration // 0: no sign of life is wanted
	log      *slog.Logger
}

// New reads the environment variables and removes them, because runc would hand NOTIFY_SOCKET on to
// containers.
func New(log *slog.Logger) *Supervisor {
	s := &Supervisor{socket: os.Getenv("NOTIFY_SOCKET"), log: log}
	microseconds, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	forThis := os.Getenv("WATCHDOG_PID") == "" || os.Getenv("WATCHDOG_PID") == strconv.Itoa(os.Getpid())
	if err == nil && forThis && microseconds > 0 {
		s.watchdog = time.Duration(microseconds) * time.Microsecond
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			log.Warn("environment of the service manager", "variable", name, "error", err)
		}
	}
	return s
}

// Tell sends one state, such as READY=1.
func (s *Supervisor) Tell(state string) {
	if s.socket == "" {
		return
	}
	if err := s.send(state); err != nil {
		s.log.Warn("cannot notify the service manager", "state", state, "error", err)
	}
}

func (s *Supervisor) send(state string) error {
	conn, err := net.Dial("unixgram", s.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("write to %s: %w", s.socket, err)
	}
	return nil
}

// Watch gives signs of life until ctx ends, twice as often as they are wanted. alive must return for
// one to be given: it takes the locks that the agent's calls need, so an agent that hangs is restarted.
func (s *Supervisor) Watch(ctx context.Context, alive func()) {
	if s.socket == "" || s.watchdog == 0 {
		return
	}
	ticker := time.NewTicker(s.watchdog / 2)
	defer ticker.Stop()
	for {
		alive()
		s.Tell("WATCHDOG=1")
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
