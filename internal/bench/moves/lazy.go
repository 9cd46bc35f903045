package moves

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// Moved is the result of a move.
type Moved struct {
	Resumed  time.Time
	Came     float64 // bytes of its memory; all, unless…
	Partly   bool    // …it did not come in time
	Measured []results.Measurement
}

// pushed notes when all memory was there, and how much of it came after the resume.
func (m *Moved) pushed(at time.Time, size float64) {
	took := at.Sub(m.Resumed).Seconds()
	m.Measured = append(m.Measured, results.Measurement{results.Push, took},
		results.Measurement{results.Goodput, size / took})
}

// unfinished notes that only this much memory has come so far.
func (m *Moved) unfinished(at time.Time, came float64) {
	m.Partly, m.Came = true, came
	m.Measured = append(m.Measured, results.Measurement{results.Came, came},
		results.Measurement{results.Goodput, came / at.Sub(m.Resumed).Seconds()})
}

const (
	lazyPort = 8731
	// PeerPatience is the patience with a peer that brings the memory, beyond the link's time; the memory
	// received until then is reported.
	PeerPatience = time.Minute
	// QuickPatience is PeerPatience in a quick run.
	QuickPatience = 3 * time.Second
	// peerEnds is how long a peer may take at its end.
	peerEnds = 10 * time.Second
	// pipeSize is the size of the pipes into which CRIU puts the pages that it serves. Without
	// CAP_SYS_RESOURCE the limit is fs.pipe-max-size, and CRIU then fails in the middle ("page-pipe:
	// splice: -1: Bad file descriptor").
	pipeSize = 4 << 20
	// pipeLimit is the file of that setting, which belongs to the whole machine.
	pipeLimit = "/proc/sys/fs/pipe-max-size"
)

// AllowPipes raises the limit so that CRIU can serve pages. The returned function restores the old value.
func AllowPipes() (func() error, error) {
	text, err := os.ReadFile(pipeLimit)
	if err != nil {
		return nil, fmt.Errorf("limit of pipes: %w", err)
	}
	before, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("limit of pipes: %w", err)
	}
	if before >= pipeSize {
		return func() error { return nil }, nil
	}
	set := func(size int) error {
		if err := os.WriteFile(pipeLimit, []byte(strconv.Itoa(size)), 0o644); err != nil {
			return fmt.Errorf("limit of pipes: %w", err)
		}
		return nil
	}
	return func() error { return set(before) }, set(pipeSize)
}

// Lazy is CRIU's own lazy migration through runc: runc checkpoint --lazy-pages serves the memory of the
// frozen processes, criu lazy-pages at the target fetches it while they run. Everything else goes by rsync,
// without compression.
type Lazy struct {
	Peer
	Container Bundle
	patience  time.Duration
	Size      float64  // of a service's memory
	leaving   *leaving // of the last move
	fetching  *fetcher // of the last move; nil if it has ended
}

// NewLazy returns CRIU's way for a container made after a model. patience bounds the wait for its memory.
func NewLazy(b *testbed.Bed, w Workload, model Bundle, patience time.Duration) *Lazy {
	if w.Memory != nil {
		model.command = w.command()
	}
	return &Lazy{Peer: Peer{Bed: b, Workload: w, Plug: model.plug, At: testbed.Nodes[0]}, Container: model,
		patience: patience}
}

// Name is the name of the way.
func (l *Lazy) Name() string { return WayLazy }

// Start starts the container on the first node.
func (l *Lazy) Start(ctx context.Context) error {
	for _, node := range []string{testbed.Other(l.At), l.At} {
		if err := l.Container.Make(ctx, testbed.Nodes[0], node); err != nil {
			return err
		}
	}
	// On both nodes, so that both have the devices that runc makes.
	if err := l.Container.Start(ctx, testbed.Other(l.At)); err != nil {
		return err
	}
	if err := l.Container.Kill(ctx, testbed.Other(l.At)); err != nil {
		return err
	}
	if err := l.Container.Start(ctx, l.At); err != nil {
		return err
	}
	return l.connect(ctx, l.Container.Pid)
}

// Dial connects to the program, on its current node.
func (l *Lazy) Dial(ctx context.Context) (net.Conn, error) {
	return l.Bed.DialProgram(ctx, l.At, l.Plug.Server(l.Workload.Memory.Listen))
}

// KeepsConnections returns false: nothing moves the container's address, so a connection from elsewhere
// breaks.
func (l *Lazy) KeepsConnections() bool { return false }

// leaving is a runc checkpoint that serves pages.
type leaving struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	end   context.CancelFunc
}

// leave begins the checkpoint and returns when the frozen processes' pages are served, with the seconds
// until then.
func (l *Lazy) leave(ctx context.Context) (*leaving, float64, error) {
	c := l.Container
	for _, dir := range []string{c.images(), c.work()} {
		if err := l.Bed.Empty(l.At, dir); err != nil {
			return nil, 0, err
		}
	}
	args := append([]string{testbed.Helper, "bench", "time", "--ready", "--"}, c.runc(
		"checkpoint", "--lazy-pages", "--page-server", net.JoinHostPort("0.0.0.0", strconv.Itoa(lazyPort)),
		"--status-fd", testbed.ReadyFD,
		"--image-path", c.images(), "--work-path", c.work(), "--tcp-established", c.name)...)
	ctx, cancel := context.WithCancel(ctx)
	left := &leaving{end: cancel}
	var err error
	if left.cmd, err = l.Bed.Command(ctx, l.At, args); err != nil {
		return left, 0, err
	}
	out, err := left.cmd.StdoutPipe()
	if err == nil {
		err = left.cmd.Start()
	}
	if err != nil {
		return left, 0, fmt.Errorf("node %s: runc checkpoint: %w", l.At, err)
	}
	left.lines = bufio.NewScanner(out)
	seconds, err := left.next()
	return left, seconds, err
}

// next reads the next of the two times that the checkpoint reports.
func (l *leaving) next() (float64, error) {
	if !l.lines.Scan() {
		return 0, errors.Join(errors.New("runc checkpoint ended without a message"), l.lines.Err())
	}
	return testbed.ParseTimed(l.lines.Text())
}

// close waits for the checkpoint to end, and then kills it.
func (l *leaving) close() {
	defer l.end()
	if l.cmd != nil && l.cmd.Process != nil {
		defer time.AfterFunc(peerEnds, l.end).Stop()
		_ = l.cmd.Wait() // it may have been killed
	}
}

// fetcher is a running criu lazy-pages.
type fetcher struct {
	end    context.CancelFunc
	ended  chan struct{}
	err    error  // when it has ended
	log    string // as a path for this program
	socket string
}

// fetch starts criu lazy-pages and waits until a restore can begin.
func (l *Lazy) fetch(ctx context.Context, to string) (*fetcher, error) {
	if err := l.Bed.Empty(to, l.Container.work()); err != nil {
		return nil, err
	}
	source, err := l.Bed.Lab.Address(l.At)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &fetcher{end: cancel, ended: make(chan struct{})}
	cmd, err := l.Bed.Command(ctx, to, []string{
		l.Bed.CRIU.Path, "lazy-pages", "--page-server", "--address", source.String(), "--port",
		strconv.Itoa(lazyPort),
		"--images-dir", testbed.Incoming, "--work-dir", l.Container.work(), "--log-file", "lazy-pages.log",
		"--verbosity=1",
	})
	if err == nil {
		f.log, err = l.Bed.Path(to, l.Container.work()+"/lazy-pages.log")
	}
	if err == nil {
		f.socket = l.Container.work() + "/lazy-pages.socket"
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("node %s: criu lazy-pages: %w", to, err)
	}
	go func() {
		f.err = cmd.Wait()
		close(f.ended)
	}()
	for !l.Bed.Has(to, f.socket) {
		select {
		case <-f.ended:
			cancel()
			return nil, f.failed()
		case <-time.After(time.Millisecond):
		}
	}
	return f, nil
}

func (f *fetcher) failed() error {
	return fmt.Errorf("criu lazy-pages has ended: %w%s",
		errors.Join(errors.New("it is needed until all memory is there"), f.err), testbed.Tail(f.log))
}

// close ends the process, if it has not ended.
func (f *fetcher) close() {
	f.end()
	select {
	case <-f.ended: // it may have been killed: its exit code says nothing
	case <-time.After(peerEnds):
	}
}

// Move returns when all memory has come, or the wait is given up.
func (l *Lazy) Move(ctx context.Context, atResume func()) (Moved, error) {
	from, to := l.At, testbed.Other(l.At)
	if err := plugIn(ctx, l.Bed, to, l.Plug); err != nil {
		return Moved{}, err
	}
	left, ready, err := l.leave(ctx)
	l.leaving = left
	if err != nil {
		return Moved{}, err
	}
	size, err := l.Bed.SizeOf(from, l.Container.images())
	if err != nil {
		return Moved{}, err
	}
	copied, err := l.Bed.Copy(ctx, from, l.Container.images()+"/")
	if err != nil {
		return Moved{}, err
	}
	began := time.Now()
	if l.fetching, err = l.fetch(ctx, to); err != nil {
		return Moved{}, err
	}
	connected := time.Since(began).Seconds()
	restore, err := l.Container.restore(ctx, to, testbed.Incoming, "--lazy-pages")
	if err != nil {
		return Moved{}, fmt.Errorf("%w%s", err, testbed.Tail(l.fetching.log))
	}
	result := Moved{Resumed: time.Now(), Measured: []results.Measurement{
		{results.Downtime, ready + copied + connected + restore},
		{results.Checkpoint, ready}, {results.Copy, copied}, {results.Connect, connected},
		{results.Restore, restore},
		{results.Images, size},
	}}
	l.At = to
	atResume()
	err = l.await(ctx, &result)
	return result, err
}

// await waits for the rest of the memory.
func (l *Lazy) await(ctx context.Context, result *Moved) error {
	size := l.Size
	if l.Workload.Memory != nil {
		size = float64(l.Workload.Memory.Size)
	}
	needed := time.Duration(size / l.Bed.Bandwidth * float64(time.Second))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.fetching.ended:
		if l.fetching.err != nil {
			return l.fetching.failed()
		}
		result.pushed(time.Now(), size)
		_, err := l.leaving.next()
		return err
	case <-time.After(needed + l.patience):
	}
	pid, err := l.Container.Pid(ctx, l.At)
	if err != nil {
		return err
	}
	came, err := l.Bed.MemoryOf(l.At, pid)
	if err != nil {
		return err
	}
	result.unfinished(time.Now(), came)
	return nil
}

// Stop ends the daemon first: CRIU at the source then ends its tasks by itself. While CRIU traces them,
// nothing else can.
func (l *Lazy) Stop(ctx context.Context) error {
	if l.fetching != nil {
		l.fetching.close()
		l.fetching = nil
	}
	if l.leaving != nil {
		l.leaving.close()
		l.leaving = nil
	}
	return errors.Join(l.Disconnect(), l.Container.Remove(ctx, testbed.Nodes[0]),
		l.Container.Remove(ctx, testbed.Nodes[1]))
}
