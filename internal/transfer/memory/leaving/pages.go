package leaving

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/wire/stream"
)

// openPages makes the way of pages to the target, or goes on with the one of what was staged, and tells the
// target its key.
func (m *Memory) openPages(ctx context.Context) error {
	pages, err := m.newPages()
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.pages = pages
	m.mu.Unlock()
	go guard.Logged(m.config.Log, func() {
		<-m.config.Ended
		m.ClosePages(errors.New("the migration has ended"))
	})()
	if err := pages.Begin(m.config.Link.Out()); err != nil {
		return err
	}
	if m.staged == nil && m.config.Terms.Reservation().GetFootprint() {
		known, err := pages.AwaitClaims(ctx)
		if err != nil {
			return err
		}
		m.config.Figures.Decided(fmt.Sprintf("%s has a residual memory copy of %d pages", m.config.Target,
			known))
	}
	lanes := precopy.Lanes{
		Main: m.config.Link.Data(), Target: m.config.Target, Note: m.config.Figures.Decided,
		Log: m.config.Log.With("migration", m.config.Migration),
		Dial: func(ctx context.Context) (*stream.Session, error) {
			return m.config.Link.OpenMore(ctx, precopy.PurposePages, 1)
		},
	}
	go guard.Logged(m.config.Log, func() {
		err := guard.Do(func() error {
			pages.Widen(ctx, lanes)
			return nil
		})
		if err != nil {
			m.config.Broken(err)
		}
	})()
	return nil
}

func (m *Memory) newPages() (*precopy.Sender, error) {
	if m.staged != nil {
		return m.staged.Sender.Again(m.config.Figures.Transferred), nil
	}
	return precopy.NewSender(m.config.Figures.Transferred)
}

// current is the way of pages to the target; nil: no page was sent yet.
func (m *Memory) current() *precopy.Sender {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pages
}

// ClosePages ends what carries pages, and whoever waits in it.
func (m *Memory) ClosePages(why error) {
	if pages := m.current(); pages != nil {
		pages.Close(why)
	}
}

// Hears reports whether sections of this kind come from the target about pages.
func Hears(kind string) bool { return kind == precopy.KindPlaced || kind == precopy.KindClaims }

// Hear takes what the target says of pages: about a barrier, or that it has some.
func (m *Memory) Hear(section stream.Section) error {
	pages := m.current()
	switch {
	case pages == nil:
		return fmt.Errorf("a section %.40q comes before any page was sent", section.Kind)
	case section.Kind == precopy.KindClaims:
		return pages.HearClaims(section, precopy.MaxClaims(m.config.Terms.Offer().GetMemoryBytes()))
	default:
		return pages.HearPlaced(section)
	}
}

// trackedPages are those of the copy that was staged, or of a tracker that begins now.
func (m *Memory) trackedPages() rounds.Pages {
	if m.staged != nil {
		pages := m.staged.Pages
		m.staged = nil
		return pages
	}
	// Also in the steps that follow: this one's context has ended then.
	return m.track(memory.SourceConfig{Processes: func() ([]int, error) { return m.processes(m.ctx) }})
}

func (m *Memory) processes(ctx context.Context) ([]int, error) {
	return m.config.Engine().Processes(ctx, m.config.Container.ID)
}
