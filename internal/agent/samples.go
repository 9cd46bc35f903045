package agent

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/predict"
)

// samples are what was measured of the containers of this node. They are measured when somebody
// wants to know, and a little longer; what they write is watched by the tracker that a migration
// uses, of which a container can have one at a time. So a migration or a stage ends the watching
// first (stop), and nobody begins it while there is one.
type samples struct {
	agent *Agent

	mu   sync.Mutex
	live map[string]*watching        // by container
	last map[string]predict.Measured // by container
	over bool
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

func newSamples(agent *Agent) *samples {
	return &samples{agent: agent, live: map[string]*watching{}, last: map[string]predict.Measured{}}
}

// known is what was measured of a container last, if that is not older than age and it was watched
// for so long.
func (s *samples) known(container string, window, age time.Duration) (predict.Measured, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, is := s.last[container]
	return last, is && time.Since(last.At) <= age && last.Curve.Longest() >= window.Seconds()
}

// measure measures a container until it is known how much it writes within a window, unless that is
// known from not longer ago than age. If it cannot be watched now, because it is being moved for
// example, what was known is all there is.
func (s *samples) measure(ctx context.Context, definition engine.Definition, window, age time.Duration) predict.Measured {
	for {
		known, is := s.known(definition.ID, window, age)
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
			known, _ = s.known(definition.ID, window, age)
			return known
		}
	}
}

// gaveUp tells whether a container could not be measured: it has ended, for example.
func (s *samples) gaveUp(w *watching) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.failed
}

// watch has a container measured for a while, and returns what is closed when there is something
// new; nil: it cannot be.
func (s *samples) watch(definition engine.Definition) (*watching, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := time.Now().Add(watchOn)
	if w := s.live[definition.ID]; w != nil {
		w.until = until
		return w, w.news
	}
	if s.over || s.agent.moves.moving(definition.ID) {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(s.agent.ctx)
	w := &watching{cancel: cancel, done: make(chan struct{}), until: until, news: make(chan struct{})}
	s.live[definition.ID] = w
	go s.agent.guarded(func() { s.run(ctx, w, definition) })()
	return w, w.news
}

// run measures a container until nobody wants to know any more.
func (s *samples) run(ctx context.Context, w *watching, definition engine.Definition) {
	defer w.cancel()
	g := &gauge{agent: s.agent, definition: definition, publish: func(m predict.Measured) { s.publish(w, m) }, wanted: func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return time.Now().Before(w.until)
	}}
	err := guard.Do(func() error { return g.run(ctx) })
	s.agent.logPanic(err)
	if err != nil && ctx.Err() == nil {
		s.agent.log.Info("container not measured", "container", definition.Name, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.failed = err != nil
	delete(s.live, definition.ID)
	close(w.news)
	close(w.done)
}

// publish keeps what was measured. What is known of longer windows from before stays, for as long
// as it is of use.
func (s *samples) publish(w *watching, m predict.Measured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.last, func(_ string, old predict.Measured) bool { return time.Since(old.At) > keepSamples })
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

// stop ends the watching of a container, and returns when nothing of it is left in its processes.
func (s *samples) stop(container string) {
	s.mu.Lock()
	w := s.live[container]
	s.mu.Unlock()
	if w != nil {
		w.cancel()
		<-w.done
	}
}

// close ends all watching, because the agent ends.
func (s *samples) close() {
	s.mu.Lock()
	s.over = true
	live := maps.Clone(s.live)
	s.mu.Unlock()
	for container := range live {
		s.stop(container)
	}
}
