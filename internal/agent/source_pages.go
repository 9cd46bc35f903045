package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/memory/precopy"
	"github.com/godwit/godwit/internal/wire/stream"
)

// openPages makes the pipeline, or goes on with the one of what was staged, and tells the target its key.
func (s *source) openPages(ctx context.Context) error {
	pages, err := s.pagesToSend()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.pages = pages
	s.mu.Unlock()
	go s.agent.guarded(func() {
		<-s.move.done
		s.closePages(errors.New("the migration has ended"))
	})()
	if err := pages.Begin(s.out); err != nil {
		return err
	}
	if s.staged == nil && s.reservation.GetFootprint() {
		known, err := pages.AwaitClaims(ctx)
		if err != nil {
			return err
		}
		s.move.tracker.decided(fmt.Sprintf("%s has a residual memory copy of %d pages", s.target.Name, known))
	}
	s.watchLanes(ctx, pages)
	return nil
}

// pagesToSend goes on with the pipeline of what was staged, if there is one.
func (s *source) pagesToSend() (*precopy.Sender, error) {
	if s.staged != nil {
		return s.staged.Sender.Again(s.move.tracker.transferred), nil
	}
	return precopy.NewSender(s.move.tracker.transferred)
}

// lanesPace is how often is looked whether more connections would be of use.
const lanesPace = 500 * time.Millisecond

// watchLanes opens more connections as long as one cannot hold what the link does, until ctx ends.
func (s *source) watchLanes(ctx context.Context, pages *precopy.Sender) {
	go s.move.guarded(func() {
		ticker := time.NewTicker(lanesPace)
		defer ticker.Stop()
		before, known := s.data.Transport()
		for lanes := 1; known && lanes < pipeline.MaxLanes; {
			select {
			case <-ticker.C:
			case <-pages.Done():
				return
			case <-ctx.Done():
				return
			}
			var now stream.Transport
			if now, known = s.data.Transport(); stream.WantsMore(before, now) {
				if err := s.openLane(ctx, pages); err != nil {
					s.agent.log.Info("one more data connection", "migration", s.id(), "error", err)
					return // It goes on with those that there are.
				}
				lanes++
			}
			before = now
		}
	})()
}

// openLane opens one more connection for pages.
func (s *source) openLane(ctx context.Context, pages *precopy.Sender) error {
	data, err := s.dialData(ctx, purposePages, 1)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.lanes = append(s.lanes, data)
	lanes := len(s.lanes) + 1
	s.mu.Unlock()
	if err := errors.Join(data.SetCodec(s.data.Codec()),
		pages.AddConnection(stream.NewSections(data, nil))); err != nil {
		return errors.Join(err, data.Close())
	}
	go s.move.guarded(func() { // it answers, and notices the end
		_, err := data.Next()
		pages.Fail(fmt.Errorf("one of the data connections to %s: %w", s.target.Name, err))
	})()
	s.move.tracker.decided(fmt.Sprintf("%d data connections: fewer cannot fill the link", lanes))
	return nil
}

// dialData opens a data connection, with workers that compress. All connections of a migration
// share its bandwidth limit.
func (s *source) dialData(ctx context.Context, purpose string, workers int) (*stream.Session, error) {
	options := s.agent.streamOptions()
	options.Limiter, options.Workers, options.Beside, options.Eager = &s.limiter, workers, s.data, true
	data, err := s.dialSession(ctx, stream.Hello{Purpose: purpose}, options)
	if err != nil {
		return nil, err
	}
	data.Adapt(func(from, to stream.Codec) {
		s.agent.log.Debug("codec", "migration", s.id(), "from", from.String(), "to", to.String(), "link",
			data.LinkBitsPerSecond())
		s.move.tracker.changedCodec(from, to)
	})
	return data, nil
}

func (s *source) dialSession(ctx context.Context, hello stream.Hello,
	options stream.Options) (*stream.Session, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	hello.Migration = s.id()
	data, err := stream.Open(ctx, conn, hello, options)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return data, nil
}

// linkSeen is what the data connections have got through, in bits per second, the last time that
// the link was the limit; 0: it never was.
func (s *source) linkSeen() (bitsPerSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bitsPerSecond = s.data.LinkBitsPerSecond()
	for _, data := range s.lanes {
		bitsPerSecond += data.LinkBitsPerSecond()
	}
	if s.files != nil && s.files.data != nil { // it is not used at the same time, mostly
		bitsPerSecond = max(bitsPerSecond, s.files.data.LinkBitsPerSecond())
	}
	return bitsPerSecond
}

// closePages ends what carries pages, and whoever waits in it.
func (s *source) closePages(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages == nil {
		return
	}
	s.pages.Fail(why)
	for _, data := range s.lanes {
		_ = data.Close()
	}
}

// sent is what has gone over all data connections so far.
func (s *source) sent() stream.Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	counters := s.data.Counters()
	if s.files != nil && s.files.data != nil {
		counters = counters.Plus(s.files.data.Counters())
	}
	if s.layers != nil {
		counters = counters.Plus(s.layers.transfer.Left())
	}
	for _, data := range s.lanes {
		counters = counters.Plus(data.Counters())
	}
	return counters
}

// hearPlaced takes what the target says about a barrier.
func (s *source) hearPlaced(section stream.Section) error {
	pages, err := s.opened(section)
	if err != nil {
		return err
	}
	return pages.HearPlaced(section)
}

// hearClaims takes what the target says that it has.
func (s *source) hearClaims(section stream.Section) error {
	pages, err := s.opened(section)
	if err != nil {
		return err
	}
	return pages.HearClaims(section, precopy.MaxClaims(s.offered.GetMemoryBytes()))
}

// opened is what a section of the target is about.
func (s *source) opened(section stream.Section) (*precopy.Sender, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages == nil {
		return nil, fmt.Errorf("a section %.40q comes before any page was sent", section.Kind)
	}
	return s.pages, nil
}
