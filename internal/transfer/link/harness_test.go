package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

const testMigration = "0123456789abcdef"

// node is the target, which takes all connections, and reads what comes over them.
type node struct {
	t testing.TB

	mu     sync.Mutex
	count  int
	fails  error // it cannot be reached
	hellos []stream.Hello
	heard  []string // kinds of sections, in order
	ended  chan error
}

func newNode(t testing.TB) *node {
	t.Helper()
	return &node{t: t, ended: make(chan error, 10)}
}

// dial is a Dial.
func (n *node) dial(ctx context.Context) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	if n.fails != nil {
		return nil, n.fails
	}
	near, far := net.Pipe()
	n.t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	go func() { n.ended <- n.serve(context.WithoutCancel(ctx), far) }()
	return near, nil
}

func (n *node) serve(ctx context.Context, far net.Conn) error {
	session, hello, err := stream.Answer(ctx, far, func(stream.Hello) error { return nil },
		stream.Options{Workers: 1})
	if err != nil {
		return err
	}
	defer session.Close()
	n.mu.Lock()
	n.hellos = append(n.hellos, hello)
	n.mu.Unlock()
	for {
		section, err := session.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := io.Copy(io.Discard, section); err != nil {
			return err
		}
		n.mu.Lock()
		n.heard = append(n.heard, section.Kind)
		n.mu.Unlock()
	}
}

func (n *node) dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

// peers knows one link.
type peers struct {
	mu    sync.Mutex
	known predict.Link
	noted int
}

func (p *peers) WayTo(string) predict.Link { return p.known }

func (p *peers) NoteLink(string, stream.Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noted++
}

// fixed are settings that nobody changes.
type fixed migration.Settings

func (f fixed) Get() migration.Settings { return migration.Settings(f) }

// linkTo is a link to a node without a connection.
func linkTo(t testing.TB, to *node, mode migration.Mode, early *Early) (*Link, *peers) {
	t.Helper()
	known := &peers{}
	l := New(Config{
		ID: testMigration, Target: "b", Mode: mode, Cores: 1, Dial: to.dial, Peers: known, Fresh: time.Minute,
		Settings: fixed{}, Figures: progress.NewTracker(migration.Spec{ID: testMigration}),
		Apart: "files", Layers: func() (stream.Counters, bool) { return stream.Counters{}, false },
		Log: slog.New(slog.DiscardHandler),
	}, early)
	t.Cleanup(func() {
		if data := l.Data(); data != nil {
			_ = data.Close()
		}
	})
	return l, known
}
