package files

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

const (
	testMigration = "0123456789abcdef"
	farAway       = 1 << 40 // bytes that no test sends
)

var (
	errCut         = errors.New("the connection is cut")
	errTest        = errors.New("it fails on purpose")
	errInterrupted = errors.New("interrupted on purpose")
)

// move is both ends of a container's files: its source for the Sender, and its target for the Receiver.
type move struct {
	t        *testing.T
	from, to string // directories of the trees
	copies   *kept.Copies

	pids     []int
	noTrees  error
	keptHere bool
	settings migration.Settings
	auto     bool
	wanted   string
	noLink   error
	speed    float64
	left     atomic.Int64                     // bytes until the connection is cut
	far      func(data *stream.Session) error // is at the other end; nil: the Receiver

	ready, ended chan struct{}
	asked        chan struct{} // closed when somebody waits for ready
	asks         sync.Once
	refuses      files.TreeKind // has no place
	noSalvage    error
	lost         chan error
	attached     chan error // how the other end of the connection has ended

	tracker  *progress.Tracker
	sender   *Sender
	receiver *Receiver
}

func newMove(t *testing.T) *move {
	t.Helper()
	return again(t, t.TempDir(), keptIn(t, t.TempDir()))
}

// again is another attempt to move the same files.
func again(t *testing.T, from string, copies *kept.Copies) *move {
	t.Helper()
	spec := migration.Spec{ID: testMigration, Side: migration.Source, Container: "one", Name: "web",
		Source: "a", Target: "b"}
	m := &move{
		t: t, from: from, to: t.TempDir(), copies: copies, ready: make(chan struct{}),
		ended: make(chan struct{}), asked: make(chan struct{}), lost: make(chan error, 10),
		attached: make(chan error, 10),
		tracker:  progress.NewTracker(spec),
	}
	m.left.Store(farAway)
	log := slog.New(slog.DiscardHandler)
	m.sender = NewSender(t.Context(), SenderConfig{
		Container: m, Link: m, Migration: m, Settings: m, Choices: m, Figures: m.tracker,
		Target: "b", Dir: t.TempDir(), Cores: 2, Log: log,
	})
	m.receiver = NewReceiver(ReceiverConfig{
		Migration: spec, Arrival: m, OfferedBytes: 1 << 20, Kept: copies, Interrupted: errInterrupted,
		Dir: t.TempDir(), Cores: 2, Log: log,
	})
	t.Cleanup(func() { close(m.ended) })
	close(m.ready)
	return m
}

func keptIn(t *testing.T, dir string) *kept.Copies {
	t.Helper()
	copies, err := kept.New(kept.Config{StateDir: dir, Keep: time.Hour, Full: func() bool { return false },
		Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	return copies
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// trees are the directories of the container, by the directory in from.
func trees() map[string]files.Tree {
	return map[string]files.Tree{
		"layer": {Kind: files.Writable}, "data": {Kind: files.VolumeOf, Name: "data"},
	}
}

func (m *move) Trees(context.Context) ([]files.Tree, error) {
	var all []files.Tree
	for _, name := range []string{"layer", "data"} {
		tree := trees()[name]
		tree.Path = filepath.Join(m.from, name)
		check(m.t, os.MkdirAll(tree.Path, 0o755))
		all = append(all, tree)
	}
	return all, m.noTrees
}

func (m *move) Processes(context.Context) ([]int, error) { return m.pids, m.noTrees }
func (m *move) OfferedBytes() int64                      { return 1 << 20 }
func (m *move) KeptThere() bool                          { return m.keptHere }
func (m *move) Lost(why error)                           { m.lost <- why }
func (m *move) Get() migration.Settings                  { return m.settings }
func (m *move) Auto() bool                               { return m.auto }
func (m *move) Wanted() string                           { return m.wanted }
func (m *move) Codec() stream.Codec                      { return stream.Choose(0, 2).Codec }
func (m *move) BytesPerSecond() float64                  { return m.speed }
func (m *move) Ended() <-chan struct{}                   { return m.ended }
func (m *move) Place() copies.Place                      { return m.place }

func (m *move) Ready() <-chan struct{} {
	m.asks.Do(func() { close(m.asked) })
	return m.ready
}

func (m *move) place(kind files.TreeKind, name string) (string, error) {
	if kind == m.refuses {
		return "", errTest
	}
	return filepath.Join(m.to, string(kind)+"-"+name), nil
}

func (m *move) Salvage(_ context.Context, take func(files.Tree) error) error {
	if m.noSalvage != nil {
		return m.noSalvage
	}
	for _, tree := range trees() {
		tree.Path, _ = m.place(tree.Kind, tree.Name)
		if err := take(tree); err != nil {
			return err
		}
	}
	return nil
}

// OpenMore connects to the Receiver, or to what a test has in its place.
func (m *move) OpenMore(ctx context.Context, purpose string, _ int) (*stream.Session, error) {
	if m.noLink != nil {
		return nil, m.noLink
	}
	near, far := net.Pipe()
	m.t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	go func() { m.attached <- m.serve(m.t.Context(), way{far, &m.left}) }()
	return stream.Open(ctx, way{near, &m.left}, stream.Hello{Migration: testMigration, Purpose: purpose},
		stream.Options{})
}

func (m *move) serve(ctx context.Context, conn net.Conn) error {
	data, _, err := stream.Answer(ctx, conn, func(stream.Hello) error { return nil }, stream.Options{})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	m.t.Cleanup(func() { _ = data.Close() })
	if m.far != nil {
		return m.far(data)
	}
	return m.receiver.Attach(ctx, data)
}

// way is one end of a connection that is cut when so many bytes have gone through both.
type way struct {
	net.Conn
	left *atomic.Int64
}

func (w way) Write(data []byte) (int, error) {
	if w.left.Add(-int64(len(data))) < 0 {
		return 0, errors.Join(errCut, w.Close())
	}
	return w.Conn.Write(data)
}

// write makes a file of the container.
func (m *move) write(name string, content []byte) {
	m.t.Helper()
	path := filepath.Join(m.from, name)
	check(m.t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(m.t, os.WriteFile(path, content, 0o600))
}

// wants compares a file at the target with what it should be.
func (m *move) wants(name, content string) {
	m.t.Helper()
	got, err := os.ReadFile(filepath.Join(m.to, name))
	if err != nil || string(got) != content {
		m.t.Errorf("%s: %.40q, %v; want %.40q", name, got, err, content)
	}
}

// wantsNothing looks for what an undo has left at the target.
func (m *move) wantsNothing() {
	m.t.Helper()
	if left, err := os.ReadDir(m.to); err != nil || len(left) > 0 {
		m.t.Errorf("left at the target: %v, %v", left, err)
	}
}

// round opens the connection, and does a round.
func (m *move) round() error {
	if err := m.sender.Open(m.t.Context()); err != nil {
		return err
	}
	return m.sender.Round(m.t.Context())
}

// freeze sends what is left over the migration's connection.
func (m *move) freeze() error {
	near, far := streamtest.Pair(m.t)
	taken := make(chan error, 1)
	go func() {
		for range 2 {
			section, err := far.Next()
			if err == nil {
				err = m.receiver.Take(m.t.Context(), section)
			}
			if err != nil {
				taken <- err
				return
			}
		}
		taken <- m.receiver.Finish()
	}()
	out := stream.NewSections(near, nil)
	err := errors.Join(m.sender.Final(m.t.Context(), out), m.sender.Last(m.t.Context(), out), near.Flush())
	return errors.Join(err, <-taken)
}
