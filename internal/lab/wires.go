package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// wiring makes links of one kind. It makes and shapes interfaces, but does not set addresses and routes.
type wiring interface {
	attach(w *wire, ends [2]relayEnd) error
	set(w *wire, ends [2]relayEnd) error
	// move moves the end at w.B from one place to another.
	move(w *wire, from, to relayEnd) error
	// detach removes the link and its interfaces.
	detach(w *wire) error
	// counters returns the traffic from A to B and back.
	counters(w *wire, ends [2]relayEnd) ([2]Counters, error)
}

func (s *state) wiring() wiring {
	if s.Wires == WiresNetem {
		return netemWiring{}
	}
	return relayWiring{lab: s.Name}
}

// relayWiring asks the lab's relay.
type relayWiring struct{ lab string }

func (r relayWiring) attach(w *wire, ends [2]relayEnd) error {
	_, err := r.ask(relayRequest{Do: "attach", Link: w.Key, Ends: ends, Set: w.Link})
	return err
}

func (r relayWiring) set(w *wire, _ [2]relayEnd) error {
	_, err := r.ask(relayRequest{Do: "set", Link: w.Key, Set: w.Link})
	return err
}

func (r relayWiring) move(w *wire, _, to relayEnd) error {
	_, err := r.ask(relayRequest{Do: "move", Link: w.Key, End: 1, Ends: [2]relayEnd{to}})
	return err
}

func (r relayWiring) detach(w *wire) error {
	_, err := r.ask(relayRequest{Do: "detach", Link: w.Key})
	return err
}

func (r relayWiring) counters(w *wire, _ [2]relayEnd) ([2]Counters, error) {
	answer, err := r.ask(relayRequest{Do: "counters", Link: w.Key})
	if err != nil || answer.Counters == nil {
		return [2]Counters{}, err
	}
	return *answer.Counters, nil
}

func (r relayWiring) ask(request relayRequest) (relayAnswer, error) {
	var answer relayAnswer
	conn, err := net.DialTimeout("unix", relaySocket(r.lab), 5*time.Second)
	if err != nil {
		return answer, fmt.Errorf("the relay of lab %s does not answer: %w; take the lab down and up again",
			r.lab, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return answer, err
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return answer, fmt.Errorf("ask the relay of lab %s: %w", r.lab, err)
	}
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("ask the relay of lab %s: %w", r.lab, err)
	}
	if answer.Error != "" {
		return answer, errors.New(answer.Error)
	}
	return answer, nil
}

// awaitSocket returns when a process listens on a unix socket.
func awaitSocket(path string, limit time.Duration, alive func() bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return poll(ctx, func() (bool, error) {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return true, conn.Close()
		}
		if !alive() {
			return false, fmt.Errorf("what was to listen at %s has ended", path)
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			return false, nil
		}
		return false, err
	})
}

// poll calls f until it reports success, fails, or the context ends.
func poll(ctx context.Context, f func() (bool, error)) error {
	pause := time.Millisecond
	for {
		done, err := f()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(pause*2, 50*time.Millisecond)
	}
}
