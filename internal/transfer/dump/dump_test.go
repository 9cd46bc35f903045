package dump

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
)

// trial is a dump whose parts note what is done with them, and whose sections go to a receiver at once.
type trial struct {
	*Dump
	mu        chan struct{} // held while something is noted
	done      []string
	fails     map[string]error
	unsettled int // times that a freeze fails because of new connections
	ahead     bool
	content   map[string]string // of the files that CRIU writes
	options   engine.DumpOptions
	kept      bool
	to        *Receiver
	dir       string // of the receiver
}

func try(t *testing.T) *trial {
	t.Helper()
	r := &trial{mu: make(chan struct{}, 1), fails: map[string]error{}, dir: t.TempDir(),
		content: map[string]string{"pages-1.img": "pages", "core-1.img": "core", "empty.img": ""}}
	spec := migration.Spec{ID: "m", Side: migration.Source}
	log := slog.New(slog.DiscardHandler)
	r.Dump = New(Config{
		Container: "c", Name: "web", Dir: t.TempDir(), Engine: func() Engine { return ofEngine{r} },
		Link: ofLink{r}, Memory: ofMemory{r}, Packets: ofPackets{r},
		Files:  func(context.Context) error { return r.does("files") },
		Keep:   func() { r.kept = true },
		Layers: func() state.Layers { return state.Layers{} }, Figures: progress.NewTracker(spec), Log: log,
	})
	r.to = NewReceiver(ReceiverConfig{Name: "web", Dir: r.dir, Limit: 1 << 20, Layers: state.Layers{},
		Answer: func(_, name string) error { return r.HearKnown(name) }, Log: log})
	return r
}

// does notes what is done, which may fail.
func (r *trial) does(what string) error {
	r.mu <- struct{}{}
	defer func() { <-r.mu }()
	r.done = append(r.done, what)
	return r.fails[what]
}

type ofEngine struct{ *trial }

func (e ofEngine) Processes(context.Context, string) ([]int, error) { return nil, e.does("processes") }

func (e ofEngine) PrepareDump(_ context.Context, _ string,
	options engine.DumpOptions) (engine.Departure, error) {
	e.trial.options = options
	return departure(e), e.does("prepare")
}

func (e ofEngine) Resume(context.Context, string) error { return e.does("engine resumes") }

type ofLink struct{ *trial }

func (l ofLink) Send(kind, name string, content []byte) error {
	return errors.Join(l.does("send "+kind), l.take(kind, name, content))
}

func (l ofLink) Begin(kind, name string) (io.WriteCloser, error) {
	return &section{of: l.trial, kind: kind, name: name}, l.does("begin " + kind)
}

// section is one that the receiver takes when it ends.
type section struct {
	bytes.Buffer
	of         *trial
	kind, name string
}

func (s *section) Close() error { return s.of.take(s.kind, s.name, s.Bytes()) }

// take gives a section to the receiver.
func (r *trial) take(kind, name string, content []byte) error {
	taken, err := r.to.Take(stream.Section{Kind: kind, Name: name, Reader: bytes.NewReader(content)})
	if !taken {
		return fmt.Errorf("a section %q is not taken", kind)
	}
	return err
}

type ofMemory struct{ *trial }

func (m ofMemory) Ahead() bool { return m.ahead }

func (m ofMemory) Quiesced(context.Context, time.Duration) error { return m.does("quiesced") }

func (m ofMemory) Frozen(context.Context) error { return m.does("frozen") }

func (m ofMemory) LeaveShared(leave func([]uint64) (bool, error)) error {
	_, err := leave(nil)
	return err
}

func (m ofMemory) Last(context.Context) error { return m.does("last") }

type ofPackets struct{ *trial }

func (p ofPackets) Hold(ctx context.Context, settle func(context.Context) error) error {
	return errors.Join(p.does("hold"), settle(ctx))
}

func (p ofPackets) Quiesce() { _ = p.does("quiesce") }

func (p ofPackets) AwaitQuiesced() error { return p.does("await quiesced") }

type departure struct{ *trial }

func (d departure) Freeze(context.Context) (time.Time, error) {
	err := d.does("freeze")
	if d.unsettled > 0 {
		d.trial.unsettled--
		err = engine.ErrUnsettled
	}
	return time.Unix(1, 0), err
}

func (d departure) Settle(context.Context) error { return d.does("settle") }

func (d departure) LeaveShared([]uint64) (bool, error) { return true, d.does("leave shared") }

func (d departure) Dump(_ context.Context, dir string) error {
	for name, content := range d.content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return d.does("dump")
}

func (d departure) LeftOut(string) (memory.Left, error) { return memory.Left{}, d.does("left out") }

func (d departure) Touched(string) ([]memory.RemoteFault, error) { return nil, d.does("touched") }

func (d departure) Close() error { return d.does("close") }

// TestDump: the container is dumped when its packets are held and blocked, and all that CRIU writes comes.
func TestDump(t *testing.T) {
	r := try(t)
	r.ahead, r.unsettled = true, 2
	ctx, leave := t.Context(), engine.Leave{}
	if err := errors.Join(r.Prepare(ctx, leave), r.SendKnown(ctx), r.AwaitKnown(ctx), r.Hold(ctx),
		r.Freeze(ctx), r.Write(ctx)); err != nil {
		t.Fatal(err)
	}
	sent, err := r.Rest()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.to.Check(sent); err != nil {
		t.Error(err)
	}
	for name, content := range r.content {
		there, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil || string(there) != content {
			t.Errorf("%s: %q, %v", name, there, err)
		}
	}
	for _, order := range [][2]string{{"hold", "settle"}, {"settle", "freeze"}, {"freeze", "frozen"},
		{"frozen", "quiesce"}, {"quiesce", "await quiesced"}, {"await quiesced", "dump"}} {
		if before, after := slices.Index(r.done, order[0]), slices.Index(r.done, order[1]); before < 0 ||
			after < before {
			t.Errorf("%s is not done before %s: %q", order[0], order[1], r.done)
		}
	}
	holds := 0
	for _, what := range r.done {
		if what == "hold" {
			holds++
		}
	}
	if holds != 3 || !r.kept || !r.options.LeaveMemory {
		t.Errorf("held %d times, kept: %t, %+v", holds, r.kept, r.options)
	}
	_, left := r.LeftOut()
	_, touched := r.Touched()
	if err := errors.Join(left, touched, r.Close(ctx)); err != nil || !slices.Contains(r.done, "close") {
		t.Errorf("%v, done: %q", err, r.done)
	}
}

// TestDumpFails: whatever fails ends the step with that error, and a copy that was not dumped is not kept.
func TestDumpFails(t *testing.T) {
	for _, what := range []string{"prepare", "settle", "quiesced", "hold", "freeze", "frozen", "leave shared",
		"await quiesced", "dump", "files", "last", "begin state"} {
		r, ctx := try(t), t.Context()
		r.fails[what] = errors.New(what + " fails")
		var err error
		for _, step := range []func(context.Context) error{
			func(ctx context.Context) error { return r.Prepare(ctx, engine.Leave{}) },
			r.Hold, r.Freeze, r.Write,
			func(context.Context) error {
				_, err := r.Rest()
				return err
			},
		} {
			if err = step(ctx); err != nil {
				break
			}
		}
		if !errors.Is(err, r.fails[what]) {
			t.Errorf("%s: %v", what, err)
		}
		if dumped := what == "files" || what == "last" || what == "begin state"; r.kept && !dumped {
			t.Errorf("%s: the copy is kept", what)
		}
	}
}

// TestCloseAfterCrash asks the engine, which knows what there is.
func TestCloseAfterCrash(t *testing.T) {
	r := try(t)
	r.fails["engine resumes"] = errors.New("cannot connect")
	if err := r.Close(t.Context()); !errors.Is(err, r.fails["engine resumes"]) {
		t.Errorf("%v", err)
	}
}
