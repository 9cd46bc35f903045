package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

const testPages = 40

// arrived is a container whose memory is filled: it takes pages that are as numbered has them.
type arrived struct {
	mu     sync.Mutex
	here   map[uint64]bool
	full   chan struct{}
	faults chan memory.RemoteFault
	closed int

	awaits  error // AwaitFilling fails
	nothing error // RemotePages fails
	fill    *memory.FillReport
	broken  error // Memory fails
	hasRun  bool
}

func newArrived() *arrived {
	return &arrived{
		here: map[uint64]bool{}, full: make(chan struct{}), faults: make(chan memory.RemoteFault, 100),
	}
}

func (a *arrived) RemotePages(context.Context) (memory.RemotePages, error) {
	if a.nothing != nil {
		return nil, a.nothing
	}
	return a, nil
}

func (a *arrived) Memory(context.Context) (memory.FillReport, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fill != nil || a.broken != nil {
		return *a.fill, a.broken
	}
	left := int64(testPages - len(a.here))
	report := memory.FillReport{
		State: memory.Filling, Pages: testPages, RemotePages: testPages, RemoteLeft: left,
	}
	if left == 0 {
		report.State = memory.Filled
	}
	return report, nil
}

func (a *arrived) AwaitFilling(context.Context) error { return a.awaits }

func (a *arrived) HasRun() bool { return a.hasRun }

// Missing lists what is not here yet.
func (a *arrived) Missing() []memory.TaskMap {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := memory.TaskMap{Task: 1}
	for i := range uint64(testPages) {
		if at := uint64(1<<20) + i*uint64(memory.PageSize()); !a.here[at] {
			m.Areas = append(m.Areas, memory.Area{Start: at, Pages: 1})
		}
	}
	return []memory.TaskMap{m}
}

func (a *arrived) Next(ctx context.Context) (memory.RemoteFault, error) {
	select {
	case fault := <-a.faults:
		return fault, nil
	case <-a.full:
		return memory.RemoteFault{}, io.EOF
	case <-ctx.Done():
		return memory.RemoteFault{}, ctx.Err()
	}
}

func (a *arrived) Put(run memory.Run, data []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := memory.PageSize()
	for i := range int(run.Pages) {
		at := run.Address + uint64(i*size)
		got, want := make([]byte, size), make([]byte, size)
		_ = (&numbered{}).Read(run.Task, at, want)
		if !run.Zero {
			copy(got, data[i*size:])
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("page %#x is wrong", at)
		}
		if a.here[at] {
			return fmt.Errorf("page %#x comes twice", at)
		}
		a.here[at] = true
	}
	if len(a.here) == testPages {
		close(a.full)
	}
	return nil
}

func (a *arrived) GiveUp(context.Context, bool) error { return nil }

func (a *arrived) Close() error {
	a.closed++
	return nil
}

// count is how many pages are here.
func (a *arrived) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.here)
}

// before is that nothing was at the target of remote pages.
type before struct{ misses bool }

func (before) Before() (*memory.Before, pipeline.Key) { return nil, pipeline.Key{} }
func (before) CloseBefore() error                     { return nil }
func (b before) Misses() bool                         { return b.misses }

// gone are frozen processes as numbered has them, that can be lost.
type gone struct{ *numbered }

func (gone) Close() error { return nil }

// ends are both ends of a push.
type ends struct {
	sender   *Sender
	receiver *Receiver
	arrived  *arrived
	frozen   *numbered
	figures  *progress.Tracker
	tries    int
}

func newEnds(t *testing.T) *ends {
	t.Helper()
	figures := progress.NewTracker(migration.Spec{ID: testMigration, Side: migration.Target})
	e := &ends{sender: NewSender(), arrived: newArrived(), frozen: &numbered{}, figures: figures}
	e.receiver = NewReceiver(ReceiverConfig{
		Container: e.arrived, Received: before{true}, Name: "web", Figures: figures, Silence: time.Minute,
		Now: func() (memory.FillReport, error) { return e.arrived.Memory(t.Context()) },
	})
	t.Cleanup(func() {
		e.receiver.Close()
		_ = e.sender.Close()
	})
	return e
}

// stay is what has stayed at the source.
func (e *ends) stay() Stay {
	return Stay{
		Copy:   Copy{gone{e.frozen}, func() error { return nil }},
		Remote: remoteOf(testPages), Since: time.Now(), Waits: true,
	}
}

// breaking is a connection that breaks after so many bytes.
type breaking struct {
	net.Conn

	mu   sync.Mutex
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.Conn.Write(p[:min(len(p), b.left)])
	b.left -= n
	if err == nil && n < len(p) {
		err = errors.Join(io.ErrClosedPipe, b.Conn.Close())
	}
	return n, err
}

const never = 1 << 30

// connect makes two new connections, which break after so many bytes from the source, and attaches both at
// the target. over is the end of the migration there.
func (e *ends) connect(t *testing.T, urgent, push int, over <-chan struct{}) (attached chan error) {
	t.Helper()
	e.tries++
	attached = make(chan error, 2)
	open := func(purpose string, left int) *stream.Session {
		near, far := net.Pipe()
		hello := stream.Hello{Migration: testMigration, Purpose: purpose, Pair: fmt.Sprint(e.tries)}
		answered := make(chan error, 1)
		go func() {
			session, hello, err := stream.Answer(t.Context(), far, func(stream.Hello) error { return nil },
				stream.Options{Workers: 1})
			answered <- err
			if err == nil {
				attached <- e.receiver.Attach(t.Context(), hello, session,
					func() <-chan struct{} { return over })
				_ = session.Close()
			}
		}()
		breaks := &breaking{Conn: near, left: never}
		session, err := stream.Open(t.Context(), breaks, hello, stream.Options{Workers: 1})
		if err := errors.Join(err, <-answered); err != nil {
			t.Fatal(err)
		}
		breaks.mu.Lock()
		breaks.left = left
		breaks.mu.Unlock()
		return session
	}
	e.sender.Connected(open(PurposeUrgent, urgent), open(PurposePush, push))
	return attached
}

// soon bounds how long anything may take in these tests.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
