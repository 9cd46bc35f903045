package migrate

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

const testMigration = "0123456789abcdef"

// node is node b of a cluster, without engines and connections.
type node struct {
	moves    *Moves
	recovery *Recovery
	stop     context.CancelFunc

	mu      sync.Mutex
	learned []migration.Report
	work    func(*Move) Work // nil: idle
}

// newNode makes a node with some engines, of which the first one is its own; without any, its own is silent.
func newNode(t *testing.T, engines ...engine.Engine) *node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "migrations")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if len(engines) == 0 {
		engines = []engine.Engine{&silent{}}
	}
	own, is := engines[0].(Own)
	if !is {
		own = &silent{}
	}
	n := &node{}
	n.open(t, Config{
		Node: "b", Incarnation: "here", Boot: "boot", Dir: dir, Spare: durable.NewSpare(dir),
		Engines: engine.NewSet(engines[0], engines[1:]...), Own: own, Looks: &inventory.Looks{},
		Timeout: time.Minute, On: n, RemoveLeft: func(string) error { return nil },
		Log: slog.New(slog.DiscardHandler),
	})
	return n
}

func (n *node) open(t *testing.T, config Config) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	n.stop = stop
	n.moves = New(ctx, config)
	n.recovery = NewRecovery(n.moves)
}

// again is the node after a restart of its agent.
func (n *node) again(t *testing.T) *node {
	t.Helper()
	next := &node{}
	config := n.moves.config
	config.On = next
	next.open(t, config)
	return next
}

// Work implements Node.
func (n *node) Work(m *Move, _ engine.Definition, _ *api.Offer) Work {
	if n.work != nil {
		return n.work(m)
	}
	return idle{m}
}

// Changed implements Node.
func (*node) Changed(engine.Definition) {}

// Ended implements Node.
func (*node) Ended() {}

// Learn implements Node.
func (n *node) Learn(report migration.Report, _ migration.Side, _ string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.learned = append(n.learned, report)
}

// idle is work that does nothing, and succeeds.
type idle struct{ move *Move }

func (idle) Do(context.Context, migration.StepName) (time.Time, error) { return time.Time{}, nil }
func (idle) Undo(context.Context, migration.StepName) error            { return nil }
func (idle) Send(migration.Message)                                    {}
func (idle) Ask(context.Context, bool) (migration.Message, error) {
	return migration.Message{}, context.DeadlineExceeded
}
func (idle) Unsent() bool { return false }
func (idle) Check(context.Context) (engine.Outcome, time.Time, error) {
	return engine.NeverRan, time.Time{}, nil
}
func (i idle) Ended(result migration.Finish) { i.move.Finish(result, nil) }
func (i idle) Fresh() Work                   { return i }

// silent is the node's own engine, which is asked nothing.
type silent struct{ engine.Engine }

func (*silent) Name() string                                     { return "embedded" }
func (*silent) Capabilities() engine.Capabilities                { return engine.Capabilities{} }
func (*silent) KeepNotes() error                                 { return nil }
func (*silent) ResumeOf(context.Context, string, string) error   { return nil }
func (*silent) Wait(ctx context.Context, _ string) (int, error)  { return 0, ctx.Err() }
func (*silent) List(context.Context) ([]engine.Container, error) { return nil, nil }
func (*silent) Inspect(context.Context, string) (engine.Container, error) {
	return engine.Container{}, engine.ErrNotFound
}

// otherEngine is an engine with one container; nothing else is asked of it.
type otherEngine struct {
	engine.Engine
	has  engine.Definition
	down error
}

func (o *otherEngine) Name() string { return "docker" }

func (*otherEngine) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (o *otherEngine) List(context.Context) ([]engine.Container, error) {
	if o.down != nil {
		return nil, o.down
	}
	return []engine.Container{{Definition: o.has}}, nil
}

func (o *otherEngine) Inspect(_ context.Context, ref string) (engine.Container, error) {
	if o.down != nil {
		return engine.Container{}, o.down
	}
	if ref != o.has.ID {
		return engine.Container{}, engine.ErrNotFound
	}
	return engine.Container{Definition: o.has, State: engine.Running}, nil
}

// putJournal makes a journal with any content.
func putJournal(file *journal.Journal, content string) error {
	if err := os.MkdirAll(file.Dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(file.Dir, "journal.json"), []byte(content), 0o600)
}

// waitUntil waits for a condition.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !is() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		case <-poll.C:
		}
	}
}
