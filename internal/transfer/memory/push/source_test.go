package push

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// leaving is the node that a container leaves, as far as a Source needs it.
type leaving struct {
	*ends
	t        *testing.T
	source   *Source
	keeper   *keyKeeper
	attached chan error

	record   migration.Record
	rebooted bool
	gone     bool  // the frozen processes
	ran      error // they have run
	opens    error // their memory cannot be opened
	again    int   // how often they were protected again
	marking  int   // under way
	fails    error // the target cannot be reached
	breaks   int   // each connection breaks after so many bytes
}

func newLeaving(t *testing.T) *leaving {
	t.Helper()
	l := &leaving{ends: newEnds(t), t: t, keeper: &keyKeeper{}, attached: make(chan error, 20), breaks: never}
	l.source = l.agent()
	return l
}

// agent is a new one, of this node.
func (l *leaving) agent() *Source {
	s := NewSource(l.t.Context(), SourceConfig{
		Copy: l, Link: l, Migration: l, Figures: l.figures, Name: "web", Target: "b", Decide: "decide it",
		Spill: SpillConfig{
			Path: filepath.Join(l.t.TempDir(), spillName), Migration: testMigration,
			Exchange: l.keeper.exchange, Note: func(what string) { l.t.Log(what) },
		},
		Silence: time.Minute, Log: slog.New(slog.DiscardHandler),
	})
	l.t.Cleanup(func() { _ = s.End() })
	return s
}

func (l *leaving) Memory(_ context.Context, elsewhere bool) (Frozen, error) {
	if l.opens != nil && !elsewhere {
		return nil, l.opens
	}
	return gone{l.frozen}, nil
}

func (l *leaving) HasRun() error             { return l.ran }
func (l *leaving) Here(context.Context) bool { return !l.gone }
func (l *leaving) KeepAgain(context.Context) { l.again++ }
func (l *leaving) Record() migration.Record  { return l.record }
func (l *leaving) Rebooted() bool            { return l.rebooted }
func (*leaving) Codec() stream.Codec         { return stream.S2 }
func (*leaving) BitsPerSecond() float64      { return 0 }

func (l *leaving) Marking(context.Context, time.Duration) (stop func()) {
	l.marking++
	return func() { l.marking-- }
}

// OpenWith opens a connection to the target, which takes it.
func (l *leaving) OpenWith(ctx context.Context, hello stream.Hello,
	options stream.Options) (*stream.Session, error) {
	if l.fails != nil && hello.Purpose == PurposeUrgent {
		return nil, l.fails
	}
	near, far := net.Pipe()
	hello.Migration = testMigration
	go func() {
		session, hello, err := stream.Answer(l.t.Context(), far, func(stream.Hello) error { return nil },
			stream.Options{Workers: 1})
		if err == nil {
			err = l.receiver.Attach(l.t.Context(), hello, session,
				func() <-chan struct{} { return l.t.Context().Done() })
			_ = session.Close()
		}
		l.attached <- err
	}()
	options.Polite = false // a pipe has no pace
	breaks := &breaking{Conn: near, left: never}
	session, err := stream.Open(ctx, breaks, hello, options)
	breaks.mu.Lock()
	defer breaks.mu.Unlock()
	breaks.left = l.breaks
	return session, err
}

// left are rounds that have left all pages here, or none.
type left struct {
	pages uint64
	soon  error
}

func (l left) Remote() (remote, hot []memory.TaskMap) {
	if l.pages == 0 {
		return nil, nil
	}
	return remoteOf(l.pages), nil
}

func (l left) Soon(int) ([]memory.RemoteFault, error) { return nil, l.soon }

// nothingSent is that the target had no page before.
type nothingSent struct{}

func (nothingSent) Had(memory.Task, uint64, []byte) bool { return false }
func (nothingSent) Key() pipeline.Key                    { return pipeline.Key{} }

// TestSource: all pages that stayed here are at the target in the end, and nothing of the push is left.
func TestSource(t *testing.T) {
	l := newLeaving(t)
	l.source.WantSpill()
	if err := l.source.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.source.Healthy(time.Hour) {
		t.Error("nobody serves yet")
	}
	rounds := left{testPages, errors.New("the order is not known")}
	if err := l.source.Begin(t.Context(), rounds, nothingSent{}); err != nil {
		t.Fatal(err)
	}
	if err := l.source.Run(soon(t), rounds); err != nil {
		t.Fatal(err)
	}
	if l.arrived.count() != testPages || l.marking != 0 || l.again != 0 {
		t.Errorf("%d pages are there, marking %d, protected again %d times", l.arrived.count(), l.marking,
			l.again)
	}
	path := l.source.config.Spill.Path
	for _, name := range []string{path, postcopy.SpillBegun(path)} {
		if _, err := os.Lstat(name); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

// TestSourceNothingStays: without pages here there is nothing to push, and nobody waits for the connections.
func TestSourceNothingStays(t *testing.T) {
	l := newLeaving(t)
	if err := l.source.Begin(t.Context(), left{}, nothingSent{}); err != nil {
		t.Errorf("without connections: %v", err)
	}
	err := l.source.Open(t.Context())
	if err := errors.Join(err, l.source.Begin(t.Context(), left{}, nothingSent{}),
		l.source.Run(t.Context(), left{})); err != nil {
		t.Error(err)
	}
	if l.source.current() != nil || l.marking != 0 {
		t.Error("something is left")
	}
	l.record.Resolved = true
	if err := l.source.Run(t.Context(), nil); err != nil {
		t.Errorf("an operator has decided: %v", err)
	}
}

// TestSourceBreaks: a step that is repeated opens other connections, and protects the copy again.
func TestSourceBreaks(t *testing.T) {
	l := newLeaving(t)
	l.breaks = 20
	if err := l.source.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	rounds := left{testPages, nil}
	if err := l.source.Begin(t.Context(), rounds, nothingSent{}); err != nil {
		t.Fatal(err)
	}
	if err := l.source.Run(soon(t), rounds); err == nil || !strings.Contains(err.Error(), "pages to b") {
		t.Fatalf("over connections that break: %v", err)
	}
	l.fails = errors.New("no route")
	if err := l.source.Run(soon(t), rounds); !errors.Is(err, l.fails) {
		t.Fatalf("to a target that cannot be reached: %v", err)
	}
	l.fails, l.breaks = nil, never
	if err := l.source.Run(soon(t), rounds); err != nil || l.again != 1 || l.arrived.count() != testPages {
		t.Fatalf("%v; protected again %d times, %d pages are there", err, l.again, l.arrived.count())
	}
}

// TestSourceOfAnotherAgent: an agent that is started again asks the target what is missing. If the processes
// have run, no page of them is sent, and an operator has to decide.
func TestSourceOfAnotherAgent(t *testing.T) {
	l := newLeaving(t)
	if err := l.source.Run(soon(t), nil); err != nil || l.arrived.count() != testPages {
		t.Fatalf("%v, %d pages are there", err, l.arrived.count())
	}
	ran := newLeaving(t)
	ran.ran = errors.New("it has run")
	var refused *migration.Refusal
	err := ran.source.Run(soon(t), nil)
	if !errors.As(err, &refused) || !strings.Contains(refused.Problems[0].Remedy, "--missing-pages") {
		t.Errorf("a copy that has run: %v", err)
	}
	if ran.arrived.count() != 0 {
		t.Errorf("%d pages of a copy that has run are there", ran.arrived.count())
	}
	closed := newLeaving(t)
	closed.opens = errors.New("the engine hangs")
	if err := closed.source.Run(soon(t), nil); !errors.Is(err, closed.opens) {
		t.Errorf("an engine that hangs: %v", err)
	}
}

// TestSourceFromDisk: what an earlier agent has spilled replaces processes that are gone.
func TestSourceFromDisk(t *testing.T) {
	l := newLeaving(t)
	first := NewSpill(l.source.config.Spill)
	first.Begin(t.Context(), remoteOf(testPages), &numbered{})
	<-first.written
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	l.frozen.lost, l.gone, l.rebooted, l.opens = true, true, true, errors.New("no processes")
	if err := l.source.Run(soon(t), nil); err != nil || l.arrived.count() != testPages {
		t.Fatalf("%v, %d pages are there", err, l.arrived.count())
	}
	away := newLeaving(t)
	away.keeper.away = 1
	away.source.WantSpill()
	away.source.spill = nil // of an agent that is no more
	if err := away.source.Run(soon(t), nil); err == nil || away.arrived.count() != 0 {
		t.Errorf("a target that does not say the key: %v", err)
	}
}

// TestSourceKilled: a container that is lost at the target leaves the decision to an operator, and the copy
// here alone.
func TestSourceKilled(t *testing.T) {
	l := newLeaving(t)
	l.arrived.fill = &memory.FillReport{State: memory.FillLost}
	close(l.arrived.full)
	l.arrived.here = map[uint64]bool{}
	for i := range uint64(testPages) {
		l.arrived.here[1<<20+i*uint64(memory.PageSize())] = true
	}
	var refused *migration.Refusal
	err := l.source.Run(soon(t), nil)
	if !errors.As(err, &refused) || refused.Problems[0].Remedy != "decide it" {
		t.Errorf("%v", err)
	}
}
