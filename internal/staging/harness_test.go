package staging

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/reserve"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

const (
	testStage     = "0123456789abcdef"
	testMigration = "fedcba9876543210"
	testPatience  = time.Minute // longer than any test
)

var web = engine.Definition{ID: strings.Repeat("ab", 32), Name: "web", Layers: []string{"layer"}}

// nodes are node a with stages, and node b with copies, as they see each other.
type nodes struct {
	stages *Stages
	copies *Copies

	mu       sync.Mutex
	written  byte                // what the container has in its memory
	ended    bool                // the container
	refused  error               // nothing may be done with the container now
	problems []migration.Problem // stand against the container at b
	missing  api.Reservation     // of its image at b
	has      bool                // b has the container
	brought  int                 // images that a had b bring
	failed   error               // to bring them
	measured string              // the container whose measuring was stopped
	closed   int                 // trackers
	given    *memory.Store       // to a migration at b
	conn     net.Conn            // a's end of the last connection
	again    []memory.TaskMap    // pages that were sent again
}

func newNodes(t *testing.T) *nodes {
	t.Helper()
	n, log, ctx := &nodes{}, slog.New(slog.DiscardHandler), context.WithoutCancel(t.Context())
	n.stages = NewStages(ctx, Config{
		Node: "a", Cores: 1, Patience: testPatience, Containers: n, Migrations: n, Links: n,
		Layers: n, Log: log})
	n.stages.tick = time.Millisecond
	n.stages.track = func(memory.SourceConfig) tracker { return &fakeTracker{n} }
	dir := t.TempDir()
	n.copies = NewCopies(ctx, CopiesConfig{
		Node: "b", RunDir: dir, Patience: testPatience, Target: n, Reservations: reserve.New(), Log: log,
		Residuals: residual.New(residual.Config{File: os.Create}),
	})
	t.Cleanup(func() {
		n.stages.Close()
		for _, one := range n.copies.List() {
			<-one.done
		}
		n.copies.residuals.Yield(1 << 40)
		if n.given != nil {
			_ = n.given.Close()
		}
	})
	return n
}

// set changes what the nodes are.
func (n *nodes) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// begin begins a stage of the container.
func (n *nodes) begin(t *testing.T, idle time.Duration) *Stage {
	t.Helper()
	settings, err := migration.StageSettings{Keep: time.Hour}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	spec := migration.Spec{ID: testStage, Container: web.ID, Name: web.Name, Source: "a", Target: "b",
		Mode: migration.PreCopy}
	g, err := n.stages.Begin(spec, web, identity.Node{Name: "b"}, settings, idle)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// until waits for something.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// end waits for the end of a stage, and of its copy, and checks why that was.
func (n *nodes) end(t *testing.T, g *Stage, why string) {
	t.Helper()
	select {
	case <-g.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the stage does not end")
	}
	if told := g.Describe(); told.State != migration.StageEnded || !strings.Contains(told.Error, why) {
		t.Errorf("the stage is %s, %q, not ended by %q", told.State, told.Error, why)
	}
	until(t, "the copy has ended", func() bool { return len(n.copies.List()) == 0 })
}

func (n *nodes) Processes(context.Context, engine.Definition) ([]int, error) { return []int{1}, nil }

func (n *nodes) Running(context.Context, engine.Definition) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.ended, nil
}

func (n *nodes) AwaitFilled(context.Context, engine.Definition) error { return nil }

func (n *nodes) Offer(_ context.Context, spec migration.Spec, of engine.Definition,
	_ identity.Node) (*api.Offer, error) {
	document, err := json.Marshal(of)
	return &api.Offer{Protocol: uint32(compat.Ours().Newest), Migration: spec.ID, DefinitionJson: document,
		MemoryBytes: 1 << 20}, err
}

func (n *nodes) StopMeasuring(container string) { n.set(func() { n.measured = container }) }

func (n *nodes) Refuse(string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refused
}

func (n *nodes) Busy() bool { return false }

// Dial makes a connection that the copies serve.
func (n *nodes) Dial(ctx context.Context, _ identity.Node, stage string,
	limiter *stream.Limiter) (*stream.Session, error) {
	near, far := net.Pipe()
	n.set(func() { n.conn = near })
	go func() {
		session, hello, err := stream.Answer(n.copies.ctx, far, func(stream.Hello) error { return nil },
			stream.Options{})
		if err == nil {
			_ = n.copies.Serve(n.copies.ctx, session, "a", hello.Migration) // the stage notices
			_ = session.Close()
		}
	}()
	return stream.Open(ctx, near, stream.Hello{Migration: stage, Purpose: "stage"},
		stream.Options{Limiter: limiter})
}

func (n *nodes) NoteLink(string, stream.Link) {}

func (n *nodes) Link(string) (rtt time.Duration, bandwidth float64) { return time.Millisecond, 1e9 }

func (n *nodes) Bring(ctx context.Context, b layers.Bringing) (migration.Layers, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.brought++
	b.Transfer.Sent(100)
	return migration.Layers{}, errors.Join(n.failed, ctx.Err())
}

func (n *nodes) Has(string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.has
}

func (n *nodes) Free() int64 { return 1 << 40 }

func (n *nodes) Examine(context.Context, string, engine.Definition, *api.Offer) ([]migration.Problem, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problems, nil
}

func (n *nodes) Missing(context.Context, engine.Definition, []migration.Problem) (*api.Reservation, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &api.Reservation{MissingImage: n.missing.MissingImage}, nil
}

func (n *nodes) Migration(id, _ string, _ engine.Definition) (func(*memory.Store) error, error) {
	if id != testMigration {
		return nil, errors.New("there is no such migration")
	}
	return func(pages *memory.Store) error {
		n.set(func() { n.given = pages })
		return nil
	}, nil
}

// fakeTracker finds one page, with what was written last.
type fakeTracker struct{ nodes *nodes }

func (f *fakeTracker) Round(_ context.Context, sink memory.Sink) (memory.RoundStats, error) {
	f.nodes.mu.Lock()
	written, ended := f.nodes.written, f.nodes.ended
	f.nodes.mu.Unlock()
	if ended {
		return memory.RoundStats{}, nil
	}
	page := make([]byte, memory.PageSize())
	for i := range page {
		page[i] = written + byte(i)
	}
	run := memory.Run{Task: 1, Address: 1 << 20, Pages: 1}
	return memory.RoundStats{Tasks: 1, Pages: 1}, sink.Put(run, page)
}

func (f *fakeTracker) Again(_ context.Context, _ memory.Sink, missing []memory.TaskMap) (memory.RoundStats,
	error) {
	f.nodes.set(func() { f.nodes.again = append(f.nodes.again, missing...) })
	return memory.RoundStats{}, nil
}

func (f *fakeTracker) Close() error {
	f.nodes.set(func() { f.nodes.closed++ })
	return nil
}
