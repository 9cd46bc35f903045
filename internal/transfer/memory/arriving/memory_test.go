package arriving

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// trial is a container that arrives at a node whose engine says what a test wants.
type trial struct {
	*Memory
	record  migration.Record
	arrives bool
	movedOn bool
	fill    memory.FillReport
	broken  error // the engine does not answer
	pages   *given
	reaches bool
	filled  *memory.Store
	data    *stream.Session
	copies  *residual.Copies
	ended   chan struct{}
}

func try(t *testing.T, mode migration.Mode) *trial {
	t.Helper()
	r := &trial{ended: make(chan struct{}), pages: &given{}}
	r.copies = residual.New(residual.Config{File: func(string) (*os.File, error) {
		return os.Create(filepath.Join(t.TempDir(), "copy"))
	}})
	spec := migration.Spec{ID: "m", Mode: mode, Side: migration.Target, Container: "c", Name: "web",
		Source: "a", Target: "b"}
	r.Memory = New(t.Context(), Config{
		Spec: spec, Offered: 1 << 20, Limit: 1 << 24, Engine: func() Engine { return ofEngine{r} },
		Migration: ofTrial{r}, Link: r, Residuals: r.copies, Figures: progress.NewTracker(spec), Silence: 50 * time.Millisecond,
		Reaches: func(string) bool { return r.reaches }, Ended: r.ended, Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() {
		r.Close(false)
		_ = r.Discard()
	})
	return r
}

// given are remote pages that can be given up.
type given struct {
	memory.RemotePages
	fails  error
	signal *bool
}

func (g *given) GiveUp(_ context.Context, signal bool) error {
	g.signal = &signal
	return g.fails
}

func (*given) Close() error { return nil }

// ofEngine is the engine.
type ofEngine struct{ trial *trial }

func (e ofEngine) Memory(context.Context, string) (memory.FillReport, error) {
	return e.trial.fill, e.trial.broken
}

func (e ofEngine) RemotePages(context.Context, string) (memory.RemotePages, error) {
	if e.trial.pages == nil {
		return nil, engine.ErrNotFilling
	}
	return e.trial.pages, nil
}

// ofTrial is the migration.
type ofTrial struct{ *trial }

func (m ofTrial) Record() migration.Record { return m.record }

func (m ofTrial) Arrives() bool { return m.arrives }

func (m ofTrial) MovedOn() bool { return m.movedOn }

// Data implements Link.
func (r *trial) Data() *stream.Session { return r.data }

// Answering implements Link.
func (r *trial) Answering(write func(*stream.Session) error) error { return write(r.data) }

// FillFrom implements Filler.
func (r *trial) FillFrom(_ context.Context, pages *memory.Store) error {
	r.filled = pages
	return r.broken
}

// sent is a section.
func sent(kind, name string, content []byte) stream.Section {
	return stream.Section{Kind: kind, Name: name, Reader: bytes.NewReader(content)}
}

// TestWhole: memory that comes ahead is whole when its map has come; otherwise none is waited for.
func TestWhole(t *testing.T) {
	ctx := t.Context()
	cold := try(t, migration.Cold)
	if err := cold.Open(ctx, cold, false); err != nil || cold.filled != nil || !cold.Whole() {
		t.Errorf("room is made for memory in the execution state: %v", err)
	}
	r := try(t, migration.PreCopy)
	near, far := streamtest.Pair(t)
	r.data = far
	go func() { // what the source hears
		for {
			section, err := near.Next()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, section)
		}
	}()
	if err := r.Open(ctx, r, false); err != nil || r.filled == nil || r.Whole() {
		t.Fatalf("%v, room was made: %t", err, r.filled != nil)
	}
	if taken, err := r.Take(ctx, sent("state", "", nil)); taken || err != nil {
		t.Errorf("what is not of memory: %t, %v", taken, err)
	}
	if taken, err := r.Take(ctx, sent(precopy.KindPages, "", nil)); !taken || err == nil {
		t.Errorf("pages before their key: %t, %v", taken, err)
	}
	if taken, err := r.Take(ctx, sent(precopy.KindKey, "", make([]byte, 16))); !taken || err != nil {
		t.Fatalf("the key: %t, %v", taken, err)
	}
	if taken, err := r.Take(ctx, sent(precopy.KindKey, "", make([]byte, 16))); !taken || err == nil {
		t.Errorf("a second key: %t, %v", taken, err)
	}
	if taken, err := r.Take(ctx, sent(precopy.KindRemote, "", []byte("x"))); !taken || err == nil {
		t.Errorf("a map that is none: %t, %v", taken, err)
	}
	if taken, err := r.Take(ctx, sent(precopy.KindMap, "nothing", nil)); !taken || err == nil {
		t.Errorf("the map of no barrier: %t, %v", taken, err)
	}
	fails := try(t, migration.PreCopy)
	fails.broken = errors.New("no pager")
	if err := fails.Open(ctx, fails, false); !errors.Is(err, fails.broken) {
		t.Errorf("an arrival that cannot be filled: %v", err)
	}
}

// TestTakeStaged: a copy is taken over before there are other pages, in a mode that has a use for it.
func TestTakeStaged(t *testing.T) {
	store := func() *memory.Store {
		made, err := memory.NewStore(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = made.Close() })
		return made
	}
	r, staged := try(t, migration.PreCopy), store()
	if err := r.TakeStaged(staged); err != nil {
		t.Fatal(err)
	}
	if err := r.TakeStaged(store()); err == nil || !strings.Contains(err.Error(), "can no longer take over") {
		t.Errorf("a second copy: %v", err)
	}
	if err := r.Open(t.Context(), r, false); err != nil || r.filled != staged {
		t.Errorf("another store is filled: %v", err)
	}
	if try(t, migration.Cold).TakeStaged(store()) == nil {
		t.Error("it is of no use in mode cold")
	}
}

// TestUseResidual: a residual copy is used as long as the migration is under way, and goes when the container
// runs here.
func TestUseResidual(t *testing.T) {
	for _, moved := range []bool{true, false} {
		r := try(t, migration.PreCopy)
		if r.UseResidual() {
			t.Error("nothing is here")
		}
		store, err := memory.NewStore(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		run := memory.Run{Task: 1, Address: 1 << 20, Pages: 1}
		if err := store.Put(run, bytes.Repeat([]byte{1}, memory.PageSize())); err != nil {
			t.Fatal(err)
		}
		made, err := r.copies.Take(residual.Origin{ContainerID: "c"}, store, t.TempDir(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		r.copies.Add(made)
		if !r.UseResidual() {
			t.Error("it is not used")
		}
		r.Close(moved)
		if _, _, there := r.copies.Holds("c"); there == moved {
			t.Errorf("moved %t, and the copy is there: %t", moved, there)
		}
	}
	if try(t, migration.Cold).UseResidual() {
		t.Error("it is of no use in mode cold")
	}
}

// TestAwaitFilling: pages are brought to nobody before there is somebody who takes them. After a restart of
// the agent nobody is waited for.
func TestAwaitFilling(t *testing.T) {
	r := try(t, migration.PostCopy)
	if err := (container{r.Memory}).AwaitFilling(t.Context()); err != nil {
		t.Errorf("there is no arrival: %v", err)
	}
	r.arrives = true
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(stopped)
	if err := r.Open(t.Context(), r, true); err != nil {
		t.Fatal(err)
	}
	if err := (container{r.Memory}).AwaitFilling(ctx); !errors.Is(err, stopped) {
		t.Errorf("it does not wait: %v", err)
	}
	r.Fill()
	if err := (container{r.Memory}).AwaitFilling(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHasRun: an arrival is known to have run when that is the decision.
func TestHasRun(t *testing.T) {
	r := try(t, migration.PostCopy)
	if (container{r.Memory}).HasRun() {
		t.Error("it has run at the source")
	}
	r.record.Decision = migration.Ran
	if !(container{r.Memory}).HasRun() {
		t.Error("it has run here")
	}
}

// TestMissing: pages can be missing while the source sends them, and also when the migration has ended: the
// source's operator may have given away pages that the container here still waits for.
func TestMissing(t *testing.T) {
	unfilled := memory.FillReport{State: memory.Filling, Pages: 10, RemotePages: 5, RemoteLeft: 3}
	moved := migration.Record{State: migration.Done, Result: migration.Moved}
	for name, c := range map[string]struct {
		record  migration.Record
		movedOn bool
		fill    memory.FillReport
		how     string
		missing bool
		err     error
	}{
		"under way": {record: migration.Record{State: migration.Running}, fill: unfilled, how: "fail",
			missing: true},
		"ended":        {record: moved, fill: unfilled, how: "kill", missing: true},
		"no choice":    {record: moved, fill: unfilled, missing: true, err: api.ErrInvalid},
		"moved on":     {record: moved, movedOn: true, fill: unfilled},
		"all are here": {record: moved, fill: memory.FillReport{State: memory.Filled}},
		"rolled back": {record: migration.Record{State: migration.Done, Result: migration.RolledBack},
			fill: unfilled},
		"in the middle": {record: migration.Record{State: migration.Committed}, fill: unfilled},
	} {
		r := try(t, migration.PostCopy)
		r.record, r.movedOn, r.fill = c.record, c.movedOn, c.fill
		missing, err := r.Missing(t.Context(), c.how)
		if missing != c.missing || !errors.Is(err, c.err) {
			t.Errorf("%s: %t, %v", name, missing, err)
		}
	}
	r := try(t, migration.PostCopy)
	r.broken = errors.New("cannot connect")
	if _, err := r.Missing(t.Context(), "fail"); !errors.Is(err, r.broken) {
		t.Errorf("an engine that is away: %v", err)
	}
	if err := r.GiveUp(t.Context(), "fail"); !errors.Is(err, r.broken) {
		t.Errorf("an engine that is away: %v", err)
	}
}

// TestGiveUp: pages are given up as the operator has chosen, and what is lost is in the report.
func TestGiveUp(t *testing.T) {
	r := try(t, migration.PostCopy)
	r.fill = memory.FillReport{State: memory.Filling, Pages: 10, RemotePages: 5, RemoteLeft: 3}
	if err := r.GiveUp(t.Context(), "kill"); err != nil || r.pages.signal == nil || *r.pages.signal {
		t.Errorf("kill: %v", err)
	}
	if err := r.GiveUp(t.Context(), "fail"); err != nil || !*r.pages.signal {
		t.Errorf("fail: %v", err)
	}
	r.fill = memory.FillReport{}
	if report := r.push.Report(); report == nil || report.LostPages != 3 {
		t.Errorf("the report is %+v", report)
	}
	r.pages.fails = errors.New("no pager")
	if err := r.GiveUp(t.Context(), "fail"); !errors.Is(err, r.pages.fails) {
		t.Errorf("%v", err)
	}
	r.pages = nil
	if err := r.GiveUp(t.Context(), "fail"); !errors.Is(err, engine.ErrNotFilling) {
		t.Errorf("%v", err)
	}
}

// TestWatch: a restore that waits for pages is given up when the source is silent, and not otherwise.
func TestWatch(t *testing.T) {
	lost := make(chan string, 1)
	nothing := try(t, migration.PostCopy)
	stop := nothing.Watch(func(why string) { lost <- why }, func(err error) { t.Error(err) })
	stop()
	stop()
	r := try(t, migration.PostCopy)
	if err := r.Open(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	var remote bytes.Buffer
	if err := memory.EncodeMap(&remote, []memory.TaskMap{{Task: 1,
		Areas: []memory.Area{{Start: 1 << 20, Pages: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Take(t.Context(), sent(precopy.KindRemote, "", remote.Bytes())); err != nil {
		t.Fatal(err)
	}
	defer r.Watch(func(why string) { lost <- why }, func(err error) { t.Error(err) })()
	if why := <-lost; !strings.Contains(why, "still at a") {
		t.Errorf("told: %q", why)
	}
}

// TestAfterTheEnd: keys and connections for pages are of no use to a migration that has ended.
func TestAfterTheEnd(t *testing.T) {
	r := try(t, migration.PostCopy)
	if kept := r.KeepSpillKey([]byte("key")); string(kept) != "key" {
		t.Errorf("kept is %q", kept)
	}
	close(r.ended)
	if kept := r.KeepSpillKey([]byte("other")); string(kept) != "key" {
		t.Errorf("after the end, kept is %q", kept)
	}
	_, far := streamtest.Pair(t)
	if err := r.Attach(t.Context(), far); err != nil {
		t.Errorf("a connection for pages: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.AttachPush(ctx, stream.Hello{Purpose: push.PurposePush, Pair: "1"}, far); err != nil {
		t.Errorf("a connection for remote pages: %v", err)
	}
	r.ClosePush()
}
