package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// supervisor is the service manager that started this agent, if it wants to be told of its state:
// systemd's protocol of sd_notify(3) and sd_watchdog_enabled(3). The environment variables are read
// once and removed, because runc would hand NOTIFY_SOCKET on to containers.
type supervisor struct {
	socket   string        // empty: nobody wants to be told
	watchdog time.Duration // 0: no sign of life is wanted
	log      *slog.Logger
}

func newSupervisor(log *slog.Logger) *supervisor {
	s := &supervisor{socket: os.Getenv("NOTIFY_SOCKET"), log: log}
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

// tell sends one state, such as READY=1.
func (s *supervisor) tell(state string) {
	if s.socket == "" {
		return
	}
	if err := s.send(state); err != nil {
		s.log.Warn("cannot notify the service manager", "state", state, "error", err)
	}
}

func (s *supervisor) send(state string) error {
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

// watch gives signs of life until ctx ends, twice as often as they are wanted. alive must return for
// one to be given: it takes the locks that the agent's calls need, so an agent that hangs is restarted.
func (s *supervisor) watch(ctx context.Context, alive func()) {
	if s.socket == "" || s.watchdog == 0 {
		return
	}
	ticker := time.NewTicker(s.watchdog / 2)
	defer ticker.Stop()
	for {
		alive()
		s.tell("WATCHDOG=1")
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// alive returns when the agent's main locks can be taken.
func (a *Agent) alive() {
	a.moves.list()
	a.peers.List()
	a.locations.MayRelease("", netip.Addr{})
}
