package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// A monitor answers one request, a JSON object, on each connection to its control socket, with another JSON
// object.
const (
	opDrain  = "drain"  // move all output of the frozen container to the log
	opRetire = "retire" // the container is being destroyed: collect its exit code without recording anything
)

const (
	maxControlBytes = 4096
	controlTimeout  = 10 * time.Second
)

type controlRequest struct {
	Op string `json:"op"`
}

type controlAnswer struct {
	Error string `json:"error,omitempty"`
}

// serve answers requests until the process ends.
func (m *monitor) serve() error {
	path := m.files.control()
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove old control socket: %w", err)
	}
	// Only root can enter the run directory, and so reach the socket.
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for requests: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go m.answer(conn)
		}
	}()
	return nil
}

func (m *monitor) answer(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(controlTimeout)) // cannot fail on an open unix socket
	var request controlRequest
	err := json.NewDecoder(io.LimitReader(conn, maxControlBytes)).Decode(&request)
	if err == nil {
		err = m.do(request)
	}
	answer := controlAnswer{}
	if err != nil {
		answer.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(answer) // the caller may be gone
}

func (m *monitor) do(request controlRequest) error {
	switch request.Op {
	case opDrain:
		return m.stdio.Drain()
	case opRetire:
		m.quiet.Store(true)
		return nil
	}
	return fmt.Errorf("unknown request %.40q", request.Op)
}

// askMonitor sends one request to a container's monitor.
func askMonitor(ctx context.Context, files container, op string) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", files.control())
	if err != nil {
		return fmt.Errorf("reach the monitor of container %.12s: %w", files.id, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(controlRequest{Op: op}); err != nil {
		return fmt.Errorf("ask the monitor of container %.12s to %s: %w", files.id, op, err)
	}
	var answer controlAnswer
	line, err := bufio.NewReader(io.LimitReader(conn, maxControlBytes)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("monitor of container %.12s did not answer to %s: %w", files.id, op, err)
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("monitor of container %.12s answered to %s: %w", files.id, op, err)
	}
	if answer.Error != "" {
		return fmt.Errorf("monitor of container %.12s: %w", files.id, errors.New(answer.Error))
	}
	return nil
}
