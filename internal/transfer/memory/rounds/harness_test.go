package rounds

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// container is the memory and the processor time of a container, by a script: what each round finds, in bytes
// on the wire. After the last one it goes on like that. It writes one page of memory for each round.
type container struct {
	script []uint64
	most   int              // rounds; then the test fails
	during func(round int)  // happens in a round; nil: nothing
	fails  map[string]error // by method
	use    memory.Use
	shared []uint64
	left   []memory.TaskMap     // pages that follow
	early  []memory.RemoteFault // that were sent because they are touched

	mu      sync.Mutex
	rounds  int
	wire    uint64
	leaving bool
	given   string
	cpus    []float64
	closed  bool
}

const (
	testTask  = memory.Task(3)
	testStart = uint64(1 << 20)
)

func (c *container) put(sink memory.Sink, final bool) (memory.RoundStats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.rounds
	c.rounds++
	if c.rounds > c.most {
		return memory.RoundStats{}, fmt.Errorf("there is no end of rounds after %d", c.most)
	}
	page := make([]byte, memory.PageSize())
	binary.LittleEndian.PutUint64(page, uint64(c.rounds))
	if err := sink.Put(memory.Run{Task: testTask, Address: testStart, Pages: 1}, page); err != nil {
		return memory.RoundStats{}, err
	}
	if len(c.script) > 0 {
		c.wire += c.script[min(at, len(c.script)-1)]
	}
	stats := memory.RoundStats{Number: c.rounds, Pages: 1, Final: final}
	if at > 0 {
		stats.Interval = time.Hour // longer than any round takes
	}
	return stats, nil
}

func (c *container) Round(_ context.Context, sink memory.Sink) (memory.RoundStats, error) {
	if c.during != nil {
		c.during(c.rounds)
	}
	stats, err := c.put(sink, false)
	return stats, errors.Join(err, c.fails["Round"])
}

func (c *container) Final(_ context.Context, sink memory.Sink) (memory.RoundStats, error) {
	stats, err := c.put(sink, true)
	return stats, errors.Join(err, c.fails["Final"])
}

func (c *container) Again(context.Context, memory.Sink, []memory.TaskMap) (memory.RoundStats, error) {
	return memory.RoundStats{}, c.fails["Again"]
}

func (c *container) Leave() { c.leaving = true }

func (c *container) Leaving() bool { return c.leaving }

func (c *container) Use() (memory.Use, error) { return c.use, c.fails["Use"] }

func (c *container) Complete(context.Context, memory.Sink, memory.Left) (memory.RoundStats, error) {
	return memory.RoundStats{Final: true}, c.fails["Complete"]
}

func (c *container) SendRemote(_ context.Context, _ memory.Sink, wanted []memory.RemoteFault, most int) (
	memory.RoundStats, error) {
	c.early = wanted[:min(most, len(wanted))]
	return memory.RoundStats{Final: true}, c.fails["SendRemote"]
}

func (c *container) Remote() (remote, hot []memory.TaskMap, err error) {
	return c.left, c.left, c.fails["Remote"]
}

func (c *container) Map() ([]memory.TaskMap, error) {
	return append([]memory.TaskMap{{Task: testTask, Areas: []memory.Area{{Start: testStart, Pages: 1}}}},
		c.left...), c.fails["Map"]
}

func (c *container) Shared() ([]uint64, error) { return c.shared, c.fails["Shared"] }

func (c *container) GiveShared(why string) error {
	c.given = why
	return c.fails["GiveShared"]
}

func (c *container) Soon(touched []memory.RemoteFault, most int) ([]memory.RemoteFault, error) {
	return touched[:min(most, len(touched))], c.fails["Soon"]
}

func (c *container) Close() error {
	c.closed = true
	return c.fails["Close"]
}

// CPUTime grows by much more than time passes.
func (c *container) CPUTime(context.Context) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rounds) * time.Hour, c.fails["CPUTime"]
}

func (c *container) Throttle(_ context.Context, cpus float64) error {
	if err := c.fails["Throttle"]; err != nil {
		return err
	}
	c.cpus = append(c.cpus, cpus)
	return nil
}

func (c *container) PageBytes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wire
}

// BytesPerSecond is a megabyte.
func (c *container) BytesPerSecond() float64 { return 1e6 }

// chosen are settings of a user.
type chosen struct{ migration.Settings }

func (c *chosen) Get() migration.Settings { return c.Settings }

func (c *chosen) Set(settings migration.Settings) { c.Settings = settings }

// trial is a container whose memory is sent to a target that takes it, over a pipe.
type trial struct {
	*Rounds
	of      *container
	link    *stream.Session
	out     *stream.Sections
	store   *memory.Store
	arrived chan error
	spec    migration.Spec
	user    *chosen
}

// try makes the rounds of a container whose user has these settings.
func try(t *testing.T, of *container, settings migration.Settings, change func(*Config)) *trial {
	t.Helper()
	if of.most == 0 {
		of.most = 50
	}
	of.script = append([]uint64(nil), of.script...)
	source, target := streamtest.Pair(t)
	spec := migration.Spec{ID: "m", Mode: migration.PreCopy, Side: migration.Source}
	figures := progress.NewTracker(spec)
	sender, err := precopy.NewSender(figures.Transferred)
	if err != nil {
		t.Fatal(err)
	}
	one := &trial{of: of, link: source, out: stream.NewSections(source, nil), arrived: make(chan error, 1),
		spec: spec, user: &chosen{settings}}
	one.receive(t, target)
	go hear(source, sender)
	if err := sender.Begin(one.out); err != nil {
		t.Fatal(err)
	}
	config := Config{
		Pages: of, Sender: sender, Settings: one.user, Figures: figures, Link: of, Processor: of,
		Files: func() time.Duration { return 0 }, Turn: &Turn{}, Mode: migration.PreCopy,
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	one.Rounds = New(config)
	return one
}

// hear passes on what the target says.
func hear(data *stream.Session, sender *precopy.Sender) {
	for {
		section, err := data.Next()
		if err == nil {
			err = sender.HearPlaced(section)
		}
		if err != nil {
			sender.Close(err)
			return
		}
	}
}

// receive takes what comes until the map has.
func (r *trial) receive(t *testing.T, data *stream.Session) {
	t.Helper()
	receiver := precopy.NewReceiver()
	store, err := receiver.Open(1 << 24)
	if err != nil {
		t.Fatal(err)
	}
	r.store = store
	t.Cleanup(func() { _ = receiver.Discard() })
	incoming := precopy.Incoming{Data: data, Barrier: func(number uint64, missing []memory.TaskMap) error {
		return precopy.TellPlaced(data, number, missing)
	}}
	go func() {
		for {
			section, err := data.Next()
			if err != nil {
				r.arrived <- err
				return
			}
			switch section.Kind {
			case precopy.KindKey:
				err = receiver.Key(section, incoming)
			case precopy.KindPages:
				_, err = receiver.Frame(section, nil)
			case precopy.KindRemote:
				err = receiver.Remote(section)
			case precopy.KindMap:
				r.arrived <- receiver.Map(t.Context(), section)
				return
			}
			if err != nil {
				_ = data.Close()
				r.arrived <- err
				return
			}
		}
	}()
}

// told wants that a decision is in the report which has all these words.
func (r *trial) told(t *testing.T, words ...string) {
	t.Helper()
	report := r.figures.Report(migration.Record{Spec: r.spec}, false)
next:
	for _, what := range report.Decisions {
		for _, word := range words {
			if !strings.Contains(what, word) {
				continue next
			}
		}
		return
	}
	t.Errorf("no decision has %q: %q", words, report.Decisions)
}

// run does the rounds without files.
func (r *trial) run(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return r.Run(ctx, func(context.Context) error { return nil })
}

// sections are those that were written.
type sections struct {
	kinds []string
	fails error
	bytes.Buffer
}

func (s *sections) Whole(kind, _ string, content []byte) error {
	s.kinds = append(s.kinds, kind)
	s.Write(content)
	return s.fails
}
