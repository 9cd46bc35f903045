package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxRequest bounds the size of one request to the relay.
const maxRequest = 64 << 10

// relayRequest is one request to the relay, a line of JSON on its unix socket.
type relayRequest struct {
	Do   string      `json:"do"` // attach, set, move, detach, counters
	Link string      `json:"link"`
	Ends [2]relayEnd `json:"ends,omitzero"`
	End  int         `json:"end,omitempty"` // which end moves to Ends[0]
	Set  Link        `json:"set,omitzero"`
}

// relayEnd is the location of a link's interface.
type relayEnd struct {
	PID       int    `json:"pid"` // of a process in the network namespace
	Interface string `json:"interface"`
}

type relayAnswer struct {
	Error    string       `json:"error,omitempty"`
	Counters *[2]Counters `json:"counters,omitempty"`
}

// relay is the process that carries the packets of all links of a lab.
type relay struct {
	mu     sync.Mutex
	cables map[string]*cable
}

// punctualRelay becomes the relay, with threads that wake up in time on a busy machine. A link that is
// sometimes late because a container computes would spoil measurements. Threads inherit both settings from
// the thread that starts the program, so the program is started again. The relay does without settings that
// it may not change.
func punctualRelay(lab string) error {
	lockThread()
	// A thread's timers are late by its slack, 50 microseconds by default (prctl(2)).
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "godwit-lab lab-relay: timer slack:", err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}, 0); err != nil {
		fmt.Fprintln(os.Stderr, "godwit-lab lab-relay: real-time priority:", err)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	args := []string{"godwit-lab", "lab-relay", lab, "run"}
	return fmt.Errorf("relay: exec %s: %w", program, unix.Exec(program, args, os.Environ()))
}

// runRelay serves until the process is killed. The socket tells it about links; it keeps nothing on disk.
func runRelay(lab string) error {
	if err := checkLabName(lab); err != nil {
		return err
	}
	path := relaySocket(lab)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("relay: %w", err)
	}
	previous := unix.Umask(0o077)
	listener, err := net.Listen("unix", path)
	unix.Umask(previous)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	r := &relay{cables: make(map[string]*cable)}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		go r.serve(conn)
	}
}

func (r *relay) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var request relayRequest
	var answer relayAnswer
	if err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&request); err != nil {
		answer.Error = "malformed request: " + err.Error()
	} else if answer.Counters, err = r.handle(request); err != nil {
		answer.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(answer) // the caller may have gone
}

func (r *relay) handle(request relayRequest) (*[2]Counters, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if request.Do == "attach" {
		return nil, r.attach(request)
	}
	c, found := r.cables[request.Link]
	if !found {
		return nil, fmt.Errorf("the relay has no link %q", request.Link)
	}
	switch request.Do {
	case "set":
		if err := request.Set.validate(); err != nil {
			return nil, err
		}
		c.set(request.Set)
	case "move":
		return nil, r.move(c, request)
	case "detach":
		delete(r.cables, request.Link)
		c.close()
	case "counters":
		counted := c.counters()
		return &counted, nil
	default:
		return nil, fmt.Errorf("the relay does not know how to %q", request.Do)
	}
	return nil, nil
}

func (r *relay) attach(request relayRequest) error {
	if err := request.Set.validate(); err != nil {
		return err
	}
	if _, found := r.cables[request.Link]; found {
		return fmt.Errorf("the relay has a link %q already", request.Link)
	}
	first, err := openTUN(request.Ends[0].PID, request.Ends[0].Interface)
	if err != nil {
		return err
	}
	second, err := openTUN(request.Ends[1].PID, request.Ends[1].Interface)
	if err != nil {
		_ = unix.Close(first)
		return err
	}
	c, err := newCable([2]int{first, second}, request.Set)
	if err != nil {
		_ = unix.Close(first)
		_ = unix.Close(second)
		return err
	}
	r.cables[request.Link] = c
	return nil
}

func (r *relay) move(c *cable, request relayRequest) error {
	if request.End < 0 || request.End > 1 {
		return fmt.Errorf("a link has no end %d", request.End)
	}
	fd, err := openTUN(request.Ends[0].PID, request.Ends[0].Interface)
	if err != nil {
		return err
	}
	c.replace(request.End, fd)
	return nil
}
