package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/wire/stream"
)

// openPages makes the way of pages to the target, or goes on with the one of what was staged, and tells the
// target its key.
func (s *source) openPages(ctx context.Context) error {
	pages, err := s.newPages()
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
	if err := pages.Begin(s.link.Out()); err != nil {
		return err
	}
	if s.staged == nil && s.reservation.GetFootprint() {
		known, err := pages.AwaitClaims(ctx)
		if err != nil {
			return err
		}
		s.move.tracker.Decided(fmt.Sprintf("%s has a residual memory copy of %d pages", s.target.Name, known))
	}
	lanes := precopy.Lanes{
		Main: s.link.Data(), Target: s.target.Name, Note: s.move.tracker.Decided,
		Log: s.agent.log.With("migration", s.id()),
		Dial: func(ctx context.Context) (*stream.Session, error) {
			return s.link.OpenMore(ctx, precopy.PurposePages, 1)
		},
	}
	go s.move.guarded(func() { pages.Widen(ctx, lanes) })()
	return nil
}

func (s *source) newPages() (*precopy.Sender, error) {
	if s.staged != nil {
		return s.staged.Sender.Again(s.move.tracker.Transferred), nil
	}
	return precopy.NewSender(s.move.tracker.Transferred)
}

// linkSeen is what the data connections have got through, in bits per second, the last time that
// the link was the limit; 0: it never was.
func (s *source) linkSeen() (bitsPerSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bitsPerSecond = s.link.Data().LinkBitsPerSecond()
	if s.pages != nil {
		bitsPerSecond += s.pages.LinkBitsPerSecond()
	}
	// the connection for files is not used at the same time, mostly
	return max(bitsPerSecond, s.files.LinkBitsPerSecond())
}

// closePages ends what carries pages, and whoever waits in it.
func (s *source) closePages(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages != nil {
		s.pages.Close(why)
	}
}

// sent is what has gone over all data connections so far.
func (s *source) sent() stream.Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	counters := s.link.Data().Counters()
	counters = s.layers.Carried(s.files.Carried(counters))
	if s.pages != nil {
		counters = s.pages.Carried(counters)
	}
	return counters
}

// hearPages takes what the target says of pages: about a barrier, or that it has some.
func (s *source) hearPages(section stream.Section) error {
	s.mu.Lock()
	pages := s.pages
	s.mu.Unlock()
	switch {
	case pages == nil:
		return fmt.Errorf("a section %.40q comes before any page was sent", section.Kind)
	case section.Kind == precopy.KindClaims:
		return pages.HearClaims(section, precopy.MaxClaims(s.offered.GetMemoryBytes()))
	default:
		return pages.HearPlaced(section)
	}
}
