package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// follower is a way to move a program whose memory may follow after the handover.
type follower interface {
	name() string
	// start starts the container on the first node, with its memory filled.
	start(ctx context.Context) error
	// dial connects to the program, on its current node.
	dial(ctx context.Context) (net.Conn, error)
	// keepsConnections reports whether connections move with the container.
	keepsConnections() bool
	// move moves the container to the other node, calls atResume when it runs there or later, and returns
	// when all of its memory is there, or the wait is given up.
	move(ctx context.Context, atResume func()) (moved, error)
	stop(ctx context.Context) error
}

// moved is the result of a move.
type moved struct {
	resumed  time.Time
	came     float64 // bytes of its memory; all, unless…
	partly   bool    // …it did not come in time
	measured []results.Measurement
}

// pushed notes when all memory was there, and how much of it came after the resume.
func (m *moved) pushed(at time.Time, size float64) {
	took := at.Sub(m.resumed).Seconds()
	m.measured = append(m.measured, results.Measurement{results.Push, took},
		results.Measurement{results.Goodput, size / took})
}

// unfinished notes that only this much memory has come so far.
func (m *moved) unfinished(at time.Time, came float64) {
	m.partly, m.came = true, came
	m.measured = append(m.measured, results.Measurement{results.Came, came},
		results.Measurement{results.Goodput, came / at.Sub(m.resumed).Seconds()})
}

// ask asks the program one question over a connection of its own.
func ask(ctx context.Context, f follower, question string, answer any) error {
	conn, err := f.dial(ctx)
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
type followerOfGodwit struct{ *godwitWay }

func (g followerOfGodwit) keepsConnections() bool { return true }

// dial connects from a client that stays attached to the first node, or from the node itself.
func (g followerOfGodwit) dial(ctx context.Context) (net.Conn, error) {
	container, err := g.inspect(ctx)
	if err != nil {
		return nil, err
	}
	server := net.JoinHostPort(container.Definition.Network.Address.String(),
		fmt.Sprint(g.workload.memory.Listen))
	if g.hasClient {
		return g.bed.DialProgram(ctx, g.clientMachine(), server)
	}
	return g.bed.DialProgram(ctx, g.at, server)
}

func (g followerOfGodwit) start(ctx context.Context) error {
	if g.workload.client {
		if err := g.bed.Lab.Client(g.clientMachine(), testbed.Nodes[0], lab.Link{}); err != nil {
			return err
		}
		g.hasClient = true
	}
	return g.godwitWay.start(ctx)
}

func (g followerOfGodwit) stop(ctx context.Context) error {
	err := g.removeContainer(ctx)
	if g.hasClient {
		err = errors.Join(err, g.bed.Lab.RemoveClient(g.clientMachine()))
		g.hasClient = false
	}
	return err
}

func (g followerOfGodwit) move(ctx context.Context, atResume func()) (moved, error) {
	var report migration.Report
	if err := g.ask(ctx, &report, "migrate", g.container(), testbed.Other(g.at), "--mode", string(g.mode),
		"--json"); err != nil {
		return moved{}, err
	}
	g.at = report.Target
	result := moved{
		resumed:  report.Started.Add(time.Duration(report.HandoffSeconds * float64(time.Second))),
		measured: append(fromReport(report), fromPush(report)...),
	}
	atResume()
	return result, g.awaitFilled(ctx)
}

// fromPush returns a report's measurements of the post-copy push.
func fromPush(r migration.Report) []results.Measurement {
	d := r.Push
	if d == nil {
		return nil // there was none
	}
	followed := float64(d.RemotePages) * float64(memory.PageSize())
	return []results.Measurement{
		{results.Push, d.Seconds}, {results.Goodput, followed / d.Seconds}, {results.Late, followed},
		{results.Faulted, float64(r.Bytes.MemoryFaulted)}, {results.Pushed, float64(r.Bytes.MemoryPushed)},
		{results.Urgent, float64(d.UrgentPages)}, {results.Served, float64(d.Faults)},
		{results.ServedMedian, d.FaultMedianSeconds}, {results.ServedP99, d.FaultP99Seconds},
		{results.ServedLongest, d.FaultMaximumSeconds},
		{results.WaitingShare, d.WaitingShare},
	}
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
	conn, err := f.dial(ctx)
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
