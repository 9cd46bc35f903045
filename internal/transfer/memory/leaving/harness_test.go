package leaving

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/memory/arriving"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

const (
	testMigration = "0123456789abcdef"
	testTask      = memory.Task(3)
	testStart     = uint64(1 << 20)
	testPages     = 50
)

// tracked is the memory of a container: all of it is sent in the first round, and one page in each later one.
type tracked struct {
	mu      sync.Mutex
	rounds  int
	leaving bool
	fails   error
	closed  int
}

// page is what a page holds after so many rounds.
func page(number, round int) []byte {
	content := make([]byte, memory.PageSize())
	for i := 0; i < len(content); i += 8 {
		binary.LittleEndian.PutUint64(content[i:], uint64(number*1e6+round)+uint64(i)*0x9e3779b97f4a7c15)
	}
	return content
}

func (p *tracked) round(sink memory.Sink, final bool) (memory.RoundStats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := memory.RoundStats{Number: p.rounds + 1, Pages: 1, Final: final, Interval: time.Hour}
	if p.fails != nil {
		return stats, p.fails
	}
	last := 1
	if p.rounds == 0 {
		last, stats.Pages = testPages, testPages
	}
	for i := range last {
		run := memory.Run{Task: testTask, Address: testStart + uint64(i*memory.PageSize()), Pages: 1}
		if err := sink.Put(run, page(i, p.rounds)); err != nil {
			return stats, err
		}
	}
	p.rounds++
	return stats, nil
}

func (p *tracked) Round(_ context.Context, sink memory.Sink) (memory.RoundStats, error) {
	return p.round(sink, false)
}

func (p *tracked) Final(_ context.Context, sink memory.Sink) (memory.RoundStats, error) {
	return p.round(sink, true)
}

func (*tracked) Again(context.Context, memory.Sink, []memory.TaskMap) (memory.RoundStats, error) {
	return memory.RoundStats{}, nil
}

func (p *tracked) Leave() { p.leaving = true }

func (p *tracked) Leaving() bool { return p.leaving }

func (*tracked) Use() (memory.Use, error) { return memory.Use{Whole: 200, Parts: 100}, nil }

func (*tracked) Complete(context.Context, memory.Sink, memory.Left) (memory.RoundStats, error) {
	return memory.RoundStats{Final: true}, nil
}

func (*tracked) SendRemote(context.Context, memory.Sink, []memory.RemoteFault, int) (memory.RoundStats,
	error) {
	return memory.RoundStats{Final: true}, nil
}

func (*tracked) Remote() (remote, hot []memory.TaskMap, err error) { return nil, nil, nil }

func (*tracked) Map() ([]memory.TaskMap, error) {
	return []memory.TaskMap{{Task: testTask,
		Areas: []memory.Area{{Start: testStart, Pages: testPages}}}}, nil
}

func (*tracked) Shared() ([]uint64, error) { return nil, nil }

func (*tracked) GiveShared(string) error { return nil }

func (*tracked) Soon([]memory.RemoteFault, int) ([]memory.RemoteFault, error) { return nil, nil }

func (p *tracked) Close() error {
	p.closed++
	return nil
}

// dumped is a dump that has left out nothing.
type dumped struct{}

func (dumped) LeftOut() (memory.Left, error) { return memory.Left{}, nil }

func (dumped) Touched() ([]memory.RemoteFault, error) { return nil, nil }

// chosen are settings of a user.
type chosen struct {
	mu       sync.Mutex
	settings migration.Settings
}

func (c *chosen) Get() migration.Settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settings
}

func (c *chosen) Set(settings migration.Settings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settings = settings
}

// agreed are the terms of a migration.
type agreed struct {
	offer       *api.Offer
	reservation *api.Reservation
}

func (a *agreed) Offer() *api.Offer { return a.offer }

func (a *agreed) Reservation() *api.Reservation { return a.reservation }

// noStages are those of a node where nothing is staged, or one copy at another node.
type noStages struct {
	copy    *staging.Stage
	dropped error
}

func (s *noStages) Of(string) *staging.Stage { return s.copy }

func (s *noStages) Drop(_ context.Context, _ string, why error) error {
	s.dropped = why
	return nil
}

// unknown are links to nodes of which nothing is known.
type unknown struct{}

func (unknown) WayTo(string) predict.Link { return predict.Link{} }

func (unknown) NoteLink(string, stream.Link) {}

// idle is an engine whose container has no process, and that may be away.
type idle struct {
	mu    sync.Mutex
	away  error
	ended int // throttles
}

func (e *idle) Processes(context.Context, string) ([]int, error) { return nil, e.away }

func (*idle) CPUTime(context.Context, string) (time.Duration, error) { return time.Hour, nil }

func (e *idle) Throttle(_ context.Context, _ string, cpus float64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cpus == 0 && e.away == nil {
		e.ended++
	}
	return e.away
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

const never = 1 << 40

// trial is a container whose memory is sent to a target, over pipes.
type trial struct {
	*Memory
	t       *testing.T
	tracked *tracked
	engine  *idle
	terms   *agreed
	stages  *noStages
	user    *chosen
	figures *progress.Tracker
	ended   chan struct{}
	breaks  int // after so many bytes the first connection does

	dialing sync.Mutex
	conns   []*breaking

	at      *arriving.Memory
	first   *link.Target
	store   *memory.Store
	arrived chan error // what has become of the memory there
}

// try makes both ends of a migration. The connections are those of open.
func try(t *testing.T, mode migration.Mode, change func(*Config)) *trial {
	t.Helper()
	spec := migration.Spec{ID: testMigration, Mode: mode, Side: migration.Source, Container: "c", Name: "web",
		Source: "a", Target: "b"}
	r := &trial{
		t: t, tracked: &tracked{}, engine: &idle{}, stages: &noStages{}, figures: progress.NewTracker(spec),
		terms: &agreed{&api.Offer{MemoryBytes: 1 << 20}, &api.Reservation{KeepsSpillKey: true}},
		user:  &chosen{settings: migration.Settings{DowntimeTarget: time.Second}},
		ended: make(chan struct{}), breaks: never, first: link.NewTarget(), arrived: make(chan error, 1),
	}
	log := slog.New(slog.DiscardHandler)
	way := link.New(link.Config{
		ID: testMigration, Target: "b", Mode: mode, Cores: 1, Dial: r.dial, Peers: unknown{},
		Fresh: time.Minute, Settings: r.user, Figures: r.figures,
		Layers: func() (stream.Counters, bool) { return stream.Counters{}, false }, Log: log,
	}, nil)
	config := Config{
		Migration: testMigration, Mode: mode, Container: Container{ID: "c", Name: "web"}, Node: "a",
		Target: "b", Engine: func() Engine { return r.engine }, Link: way, Settings: r.user,
		Figures: r.figures, Terms: r.terms, Stages: r.stages, Files: func() time.Duration { return 0 },
		After: After{Spill: filepath.Join(t.TempDir(), "spill"), Migration: running{}, Silence: time.Minute},
		Residual: Residual{
			Copies: residual.New(residual.Config{
				File: func(path string) (*os.File, error) { return os.Create(path) },
			}),
			Dir: filepath.Join(t.TempDir(), "residual"), Keep: func() time.Duration { return 0 },
		},
		Ended: r.ended, Broken: func(err error) { t.Errorf("a panic: %v", err) }, Log: log,
	}
	if change != nil {
		change(&config)
	}
	r.Memory = New(t.Context(), config)
	r.track = func(memory.SourceConfig) rounds.Pages { return r.tracked }
	r.at = arriving.New(t.Context(), arriving.Config{
		Spec: spec, Offered: 1 << 20, Limit: 1 << 24, Migration: atTarget{}, Link: r.first,
		Residuals: config.Residual.Copies, Figures: progress.NewTracker(spec), Silence: time.Minute,
		Engine:  func() arriving.Engine { return filled{} },
		Reaches: func(string) bool { return true }, Ended: r.ended, Log: log,
	})
	t.Cleanup(r.end)
	return r
}

// end ends the migration.
func (r *trial) end() {
	select {
	case <-r.ended:
		return
	default:
	}
	close(r.ended)
	r.at.Close(false)
	_ = r.at.Discard()
	r.cut()
}

// cut ends all connections.
func (r *trial) cut() {
	r.dialing.Lock()
	defer r.dialing.Unlock()
	for _, conn := range r.conns {
		_ = conn.Close()
	}
}

// running is a migration that is under way.
type running struct{}

func (running) Record() migration.Record { return migration.Record{} }

func (running) Rebooted() bool { return false }

// atTarget is the same at the target.
type atTarget struct{}

func (atTarget) Record() migration.Record { return migration.Record{} }

func (atTarget) Arrives() bool { return false }

func (atTarget) MovedOn() bool { return false }

// filled is an engine whose container has all its memory.
type filled struct{}

func (filled) Memory(context.Context, string) (memory.FillReport, error) {
	return memory.FillReport{State: memory.Filled}, nil
}

func (filled) RemotePages(context.Context, string) (memory.RemotePages, error) {
	return nil, engine.ErrNotFilling
}

// dial makes a connection to the target, which serves it.
func (r *trial) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	conn := &breaking{Conn: near, left: never}
	r.dialing.Lock()
	if len(r.conns) == 0 {
		conn.left = r.breaks
	}
	r.conns = append(r.conns, conn)
	r.dialing.Unlock()
	ctx = context.WithoutCancel(ctx)
	go func() {
		session, hello, err := stream.Answer(ctx, far, func(stream.Hello) error { return nil },
			stream.Options{Workers: 1})
		if err == nil && hello.Purpose == "migration" {
			r.first.Attach(session, slog.New(slog.DiscardHandler))
			r.arrived <- r.receive(ctx)
			_ = session.Close()
		} else if err == nil {
			_ = r.at.AttachPush(ctx, hello, session)
			_ = session.Close()
		}
	}()
	return conn, nil
}

// FillFrom implements arriving.Filler.
func (r *trial) FillFrom(_ context.Context, pages *memory.Store) error {
	r.store = pages
	return nil
}

// receive is what the target does.
func (r *trial) receive(ctx context.Context) error {
	if err := r.first.AwaitStaged(ctx); err != nil {
		return err
	}
	if err := r.at.Open(ctx, r, false); err != nil {
		return err
	}
	for {
		section, err := r.first.Data().Next()
		if err != nil {
			return err
		}
		if section.Kind == link.KindFinal {
			if !r.at.Whole() {
				return errors.New("the map is missing")
			}
			return nil
		}
		taken, err := r.at.Take(ctx, section)
		if err == nil && !taken {
			err = fmt.Errorf("a section %q", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// open opens the first connection, and passes on what the target says.
func (r *trial) open() error {
	data, err := r.config.Link.Open(r.t.Context(), "migration")
	if err != nil {
		return err
	}
	go func() {
		for {
			section, err := data.Next()
			if err == nil && !Hears(section.Kind) {
				err = fmt.Errorf("a section %q", section.Kind)
			}
			if err == nil {
				err = r.Hear(section)
			}
			if err != nil {
				r.ClosePages(err)
				return
			}
		}
	}()
	return r.config.Link.Send(link.KindStaged, "", nil)
}

// move does all that is done with memory, in the order of the steps, and ends the rounds early if that is
// wanted.
func (r *trial) move(ctx context.Context) error {
	none := func(context.Context) error { return nil }
	leave := func([]uint64) (bool, error) { return true, nil }
	for _, step := range []func() error{
		r.ExamineKey,
		r.open,
		func() error { return r.TakeStaged(ctx) },
		func() error { return r.Run(ctx, none) },
		r.Foresee,
		func() error { return r.OpenPush(ctx) },
		func() error { return r.CatchUp(ctx) },
		func() error { return r.Quiesced(ctx, time.Second) },
		func() error { return r.Frozen(ctx) },
		func() error { return r.LeaveShared(leave) },
		func() error { return r.Last(ctx) },
		func() error { return r.Finish(ctx, dumped{}) },
		func() error { return r.config.Link.Final(link.Marker{}) },
		func() error { return r.HandOver(ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// moves wants that all of it works, at both ends.
func (r *trial) moves() {
	r.t.Helper()
	if err := r.move(soon(r.t)); err != nil {
		r.t.Fatal(err)
	}
	if err := <-r.arrived; err != nil {
		r.t.Fatal(err)
	}
}

// whole compares what is at the target.
func (r *trial) whole() error {
	r.tracked.mu.Lock()
	last := r.tracked.rounds - 1
	r.tracked.mu.Unlock()
	there := make([]byte, memory.PageSize())
	for i := range testPages {
		want := page(i, 0)
		if i == 0 {
			want = page(0, last)
		}
		has, err := r.store.ReadPage(testTask, testStart+uint64(i*memory.PageSize()), there)
		if err != nil || !has || string(there) != string(want) {
			return fmt.Errorf("page %d: there %t, %w", i, has, errors.Join(err, errors.ErrUnsupported))
		}
	}
	return nil
}

// soon bounds how long anything may take in these tests.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
