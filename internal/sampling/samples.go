package sampling

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/predict"
)

// Samples are what was measured of the containers of this node. They are measured when somebody
// wants to know, and a little longer; what they write is watched by the tracker that a migration
// uses, of which a container can have one at a time. So a migration or a stage ends the watching
// first (Stop), and nobody begins it while there is one.
type Samples struct {
	ctx  context.Context //nolint:containedctx // The life of the node: measuring outlives the calls that begin it.
	node Node
	name string // of the node
	log  *slog.Logger

	mu   sync.Mutex
	live map[string]*watching        // by container
	last map[string]predict.Measured // by container
	over bool
}

// Node is what there is to know of the node for measuring its containers.
type Node interface {
	// Engine is that of a container.
	Engine(of engine.Definition) Engine
	// Connections are how many a container has, and the bytes in their queues.
	Connections(container string) (count int, queuedBytes int64, err error)
	// Moving tells whether a migration is in charge of a container: nobody else may touch its processes.
	Moving(container string) bool
	// Staged tells whether there is a copy of a container for which its processes are tracked.
	Staged(container string) bool
}

// Engine is what there is to know of a container for measuring it. See engine.Engine.
type Engine interface {
	Processes(ctx context.Context, id string) ([]int, error)
	Memory(ctx context.Context, id string) (memory.FillReport, error)
	CPUTime(ctx context.Context, id string) (time.Duration, error)
}

// watching is one container that is being measured.
type watching struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it is left
	until  time.Time     // somebody wants to know until then
	news   chan struct{} // closed when there is something new
	failed bool          // it has ended because the container cannot be measured
}

const (
	// watchOn is for how long a container is measured on when somebody has asked: one who looks all
	// the time asks again.
	watchOn = 5 * time.Second
	// keepSamples is how long what was measured is of use to anybody.
	keepSamples = 10 * time.Minute
)

// New is without samples yet. Measuring ends with ctx, or by Close.
func New(ctx context.Context, name string, node Node, log *slog.Logger) *Samples {
	return &Samples{
		ctx: ctx, node: node, name: name, log: log,
		live: map[string]*watching{}, last: map[string]predict.Measured{},
	}
}

// Known is what was measured of a container last, if that is not older than age and it was watched
// for so long.
func (s *Samples) Known(container string, window, age time.Duration) (predict.Measured, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, is := s.last[container]
	return last, is && time.Since(last.At) <= age && last.Curve.Longest() >= window.Seconds()
}

// Last is what was measured of a container last, and whether that is not too long ago to be of use.
func (s *Samples) Last(container string) (predict.Measured, bool) {
	return s.Known(container, 0, keepSamples)
}

// Look is what is known of a container without watching it: nothing is done in its processes. What
// it writes is known if it was measured not long ago.
func (s *Samples) Look(ctx context.Context, definition engine.Definition) (predict.Measured, error) {
	known, _ := s.Last(definition.ID)
	known.Name, known.ID, known.Node = definition.Name, definition.ID, s.name
	g := &gauge{node: s.node, definition: definition, now: known}
	err := g.look(ctx)
	return g.now, err
}

// Measure measures a container until it is known how much it writes within a window, unless that is
// known from not longer ago than age. If it cannot be watched now, because it is being moved for
// example, what was known is all there is.
func (s *Samples) Measure(
	ctx context.Context, definition engine.Definition, window, age time.Duration,
) predict.Measured {
	for {
		known, is := s.Known(definition.ID, window, age)
		if is {
			return known
		}
		w, news := s.watch(definition)
		if w == nil {
			return known
		}
		age = max(age, window+watchOn) // what has come since it was asked for is new
		select {
		case <-news:
		case <-ctx.Done():
			return known
		}
		if s.gaveUp(w) {
			known, _ = s.Known(definition.ID, window, age)
			return known
		}
	}
}

// gaveUp tells whether a container could not be measured: it has ended, for example.
func (s *Samples) gaveUp(w *watching) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.failed
}

// Watch has a container measured for a while, if it can be.
func (s *Samples) Watch(definition engine.Definition) { s.watch(definition) }

// watch has a container measured for a while, and returns what is closed when there is something
// new; nil: it cannot be.
func (s *Samples) watch(definition engine.Definition) (*watching, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := time.Now().Add(watchOn)
	if w := s.live[definition.ID]; w != nil {
		w.until = until
		return w, w.news
	}
	if s.over || s.node.Moving(definition.ID) {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(s.ctx)
	w := &watching{cancel: cancel, done: make(chan struct{}), until: until, news: make(chan struct{})}
	s.live[definition.ID] = w
	go guard.Logged(s.log, func() { s.run(ctx, w, definition) })()
	return w, w.news
}

// run measures a container until nobody wants to know any more.
func (s *Samples) run(ctx context.Context, w *watching, definition engine.Definition) {
	defer w.cancel()
	g := &gauge{
		node: s.node, definition: definition,
		processes: func() ([]int, error) {
			return s.node.Engine(definition).Processes(s.ctx, definition.ID)
		},
		publish: func(m predict.Measured) { s.publish(w, m) }, wanted: func() bool { return s.wanted(w) },
	}
	g.now.Name, g.now.ID, g.now.Node = definition.Name, definition.ID, s.name
	err := guard.Do(func() error { return g.run(ctx) })
	guard.LogPanic(s.log, err)
	if err != nil && ctx.Err() == nil {
		s.log.Info("container not measured", "container", definition.Name, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.failed = err != nil
	delete(s.live, definition.ID)
	close(w.news)
	close(w.done)
}

// wanted tells whether somebody wants to know yet.
func (s *Samples) wanted(w *watching) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(w.until)
}

// publish keeps what was measured. What is known of longer windows from before stays, for as long
// as it is of use.
func (s *Samples) publish(w *watching, m predict.Measured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.last,
		func(_ string, old predict.Measured) bool { return time.Since(old.At) > keepSamples })
	if old, is := s.last[m.ID]; is {
		for _, point := range old.Curve {
			if n := len(m.Curve); n > 0 && point.Seconds > m.Curve[n-1].Seconds {
				point.Bytes = max(point.Bytes, m.Curve[n-1].Bytes)
				m.Curve = append(m.Curve, point)
			}
		}
	}
	s.last[m.ID] = m
	close(w.news)
	w.news = make(chan struct{})
}

// Stop ends the watching of a container, and returns when nothing of it is left in its processes.
func (s *Samples) Stop(container string) {
	s.mu.Lock()
	w := s.live[container]
	s.mu.Unlock()
	if w != nil {
		w.cancel()
		<-w.done
	}
}

// Close ends all watching, because the agent ends.
func (s *Samples) Close() {
	s.mu.Lock()
	s.over = true
	live := maps.Clone(s.live)
	s.mu.Unlock()
	for container := range live {
		s.Stop(container)
	}
}
