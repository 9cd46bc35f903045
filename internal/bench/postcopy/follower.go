package postcopy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// follower is a way to move a program whose memory may follow after the handover.
type follower interface {
	Name() string
	// Start starts the container on the first node, with its memory filled.
	Start(ctx context.Context) error
	// Dial connects to the program, on its current node.
	Dial(ctx context.Context) (net.Conn, error)
	// KeepsConnections reports whether connections move with the container.
	KeepsConnections() bool
	// Move moves the container to the other node, calls atResume when it runs there or later, and returns
	// when all of its memory is there, or the wait is given up.
	Move(ctx context.Context, atResume func()) (moves.Moved, error)
	Stop(ctx context.Context) error
}

// ask asks the program one question over a connection of its own.
func ask(ctx context.Context, f follower, question string, answer any) error {
	conn, err := f.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(testbed.Asking)); err != nil {
		return err
	}
	return pages.NewAsker(conn).Ask(question, answer)
}

// followerOfGodwit is Godwit in one of its modes.
type followerOfGodwit struct{ *moves.Godwit }

func (g followerOfGodwit) KeepsConnections() bool { return true }

// Dial connects from a client that stays attached to the first node, or from the node itself.
func (g followerOfGodwit) Dial(ctx context.Context) (net.Conn, error) {
	container, err := g.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	server := net.JoinHostPort(container.Definition.Network.Address.String(),
		fmt.Sprint(g.Workload.Memory.Listen))
	if g.HasClient {
		return g.Bed.DialProgram(ctx, g.ClientMachine(), server)
	}
	return g.Bed.DialProgram(ctx, g.At, server)
}

func (g followerOfGodwit) Start(ctx context.Context) error {
	if g.Workload.Client {
		if err := g.Bed.Lab.Client(g.ClientMachine(), testbed.Nodes[0], lab.Link{}); err != nil {
			return err
		}
		g.HasClient = true
	}
	return g.Godwit.Start(ctx)
}

func (g followerOfGodwit) Stop(ctx context.Context) error {
	err := g.RemoveContainer(ctx)
	if g.HasClient {
		err = errors.Join(err, g.Bed.Lab.RemoveClient(g.ClientMachine()))
		g.HasClient = false
	}
	return err
}

func (g followerOfGodwit) Move(ctx context.Context, atResume func()) (moves.Moved, error) {
	var report migration.Report
	if err := g.Ask(ctx, &report, "migrate", g.Container(), testbed.Other(g.At), "--mode", string(g.Mode),
		"--json"); err != nil {
		return moves.Moved{}, err
	}
	g.At = report.Target
	result := moves.Moved{
		Resumed:  report.Started.Add(time.Duration(report.HandoffSeconds * float64(time.Second))),
		Measured: append(moves.FromReport(report), moves.FromPush(report)...),
	}
	atResume()
	return result, g.AwaitFilled(ctx)
}

// fromAccessed returns the program's own measurements while so many bytes came.
func fromAccessed(seen pages.Accessed, came float64) []results.Measurement {
	return []results.Measurement{
		{metricWaits, float64(seen.Waits)}, {metricFaultsPer, float64(seen.Waits) * results.Gibi / came},
		{metricWaitMedian, seen.MedianSeconds}, {metricWaitP99, seen.P99Seconds},
		{metricWaitLongest, seen.LongestSeconds},
		{results.WaitedInAll, seen.WaitedSeconds},
	}
}

// service is a client that makes the program read all its hot memory, and answer, ten times a second.
type service struct {
	conn    net.Conn
	mu      sync.Mutex
	answers []time.Time
	end     context.CancelFunc
	ended   chan error
}

const askEvery = 100 * time.Millisecond

// startService starts the client.
func startService(ctx context.Context, f follower) (*service, error) {
	conn, err := f.Dial(ctx)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	s := &service{conn: conn, end: end, ended: make(chan error, 1)}
	go func() { s.ended <- s.ask(ctx) }()
	return s, nil
}

func (s *service) ask(ctx context.Context) error {
	asker := pages.NewAsker(s.conn)
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		var seen pages.Accessed
		if err := asker.Ask(pages.AskHot, &seen); err != nil {
			if ctx.Err() != nil {
				return nil // it was closed
			}
			return err
		}
		s.mu.Lock()
		s.answers = append(s.answers, time.Now())
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// await waits for an answer after an instant.
func (s *service) await(ctx context.Context, after time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, testbed.Asking)
	defer cancel()
	for {
		if _, _, has := s.seen(after); has {
			return nil
		}
		select {
		case err := <-s.ended:
			s.ended <- err
			return errors.Join(errors.New("the client of the program gets no answers any more"), err)
		default:
		}
		if err := testbed.Pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("the client of the program gets no answer: %w", err)
		}
	}
}

// seen returns how long after an instant the next answer came, and the longest time between two answers.
func (s *service) seen(after time.Time) (answered, gap time.Duration, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.answers {
		if i > 0 {
			gap = max(gap, at.Sub(s.answers[i-1]))
		}
		if !has && at.After(after) {
			answered, has = at.Sub(after), true
		}
	}
	return answered, gap, has
}

func (s *service) close() error {
	s.end()
	_ = s.conn.Close() // it may be in the middle of an answer
	return <-s.ended
}
