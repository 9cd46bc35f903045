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

// Samples are the measurements of this node's containers. A container is measured when a caller asks, and a
// little longer. Its writes are watched with the tracker that a migration uses, and a container can have
// one tracker at a time. So a migration or a stage ends the watching first (Stop), and watching does not
// begin while there is one.
type Samples struct {
	ctx  context.Context //nolint:containedctx // the life of the node: longer than the calls
	node Node
	name string // of the node
	log  *slog.Logger

	mu   sync.Mutex
	live map[string]*watching        // by container
	last map[string]predict.Measured // by container
	over bool
}

// Node provides what is needed of the node to measure its containers.
type Node interface {
	// Engine returns a container's engine.
	Engine(of engine.Definition) Engine
	// Connections returns a container's number of connections, and the bytes in their queues.
	Connections(container string) (count int, queuedBytes int64, err error)
	// Moving reports whether a migration controls a container: nothing else may touch its processes.
	Moving(container string) bool
	// Staged reports whether a stage tracks the container's processes.
	Staged(container string) bool
}

// Engine provides what is needed of an engine to measure a container. See engine.Engine.
type Engine interface {
	Processes(ctx context.Context, id string) ([]int, error)
	Memory(ctx context.Context, id string) (memory.FillReport, error)
	CPUTime(ctx context.Context, id string) (time.Duration, error)
}

// watching is one container that is being measured.
type watching struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the watching has ended completely
	until  time.Time     // until then, a caller is interested
	news   chan struct{} // closed when there is a new measurement
	failed bool          // the watching has ended because the container cannot be measured
}

const (
	// watchOn is for how long a container is still measured after a caller has asked: a caller who looks
	// all the time asks again.
	watchOn = 5 * time.Second
	// keepSamples is how long a measurement is useful.
	keepSamples = 10 * time.Minute
)

// New returns Samples without measurements. Measuring ends with ctx, or by Close.
func New(ctx context.Context, name string, node Node, log *slog.Logger) *Samples {
	return &Samples{
		ctx: ctx, node: node, name: name, log: log,
		live: map[string]*watching{}, last: map[string]predict.Measured{},
	}
}

// Known returns the last measurement of a container, if it is not older than age and its curve reaches
// window.
func (s *Samples) Known(container string, window, age time.Duration) (predict.Measured, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, is := s.last[container]
	return last, is && time.Since(last.At) <= age && last.Curve.Longest() >= window.Seconds()
}

// Last returns the last measurement of a container, and whether it is recent enough to be useful.
func (s *Samples) Last(container string) (predict.Measured, bool) {
	return s.Known(container, 0, keepSamples)
}

// Look returns what is known of a container without watching it: it does nothing in its processes. The
// writes are known if they were measured recently.
func (s *Samples) Look(ctx context.Context, definition engine.Definition) (predict.Measured, error) {
	known, _ := s.Last(definition.ID)
	known.Name, known.ID, known.Node = definition.Name, definition.ID, s.name
	g := &gauge{node: s.node, definition: definition, now: known}
	err := g.look(ctx)
	return g.now, err
}

// Measure measures a container until its writes within a window are known, unless there is a measurement
// that is not older than age. If the container cannot be watched now, for example because a migration moves
// it, Measure returns the last measurement.
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
		age = max(age, window+watchOn) // measurements since the request are new
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

// gaveUp reports whether a container could not be measured, for example because it has ended.
func (s *Samples) gaveUp(w *watching) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.failed
}

// Watch measures a container for a while, if that is possible.
func (s *Samples) Watch(definition engine.Definition) { s.watch(definition) }

// watch measures a container for a while, and returns a channel that is closed at the next measurement;
// nil: the container cannot be measured.
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

// run measures a container until nobody is interested any more.
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

// wanted reports whether a caller is still interested.
func (s *Samples) wanted(w *watching) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(w.until)
}

// publish keeps a measurement. Earlier points of longer windows stay as long as they are useful.
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

// Stop ends the watching of a container, and returns when nothing of it is left in the processes.
func (s *Samples) Stop(container string) {
	s.mu.Lock()
	w := s.live[container]
	s.mu.Unlock()
	if w != nil {
		w.cancel()
		<-w.done
	}
}

// Close ends all watching when the agent ends.
func (s *Samples) Close() {
	s.mu.Lock()
	s.over = true
	live := maps.Clone(s.live)
	s.mu.Unlock()
	for container := range live {
		s.Stop(container)
	}
}
