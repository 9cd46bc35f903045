package precopy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Lanes is what more connections for pages are made by.
type Lanes struct {
	Main   *stream.Session                                // the migration's own
	Dial   func(context.Context) (*stream.Session, error) // opens one more, for PurposePages
	Target string                                         // the node's name
	Note   func(string)                                   // for the report
	Log    *slog.Logger
}

// lanesPace is how often is looked whether more connections would be of use.
const lanesPace = 500 * time.Millisecond

// Widen opens more connections as long as one cannot hold what the link does, until ctx ends.
func (p *Sender) Widen(ctx context.Context, by Lanes) {
	ticker := time.NewTicker(lanesPace)
	defer ticker.Stop()
	before, known := by.Main.Transport()
	for lanes := 1; known && lanes < pipeline.MaxLanes; {
		select {
		case <-ticker.C:
		case <-p.Done():
			return
		case <-ctx.Done():
			return
		}
		var now stream.Transport
		if now, known = by.Main.Transport(); stream.WantsMore(before, now) {
			if err := p.openLane(ctx, by); err != nil {
				by.Log.Info("one more data connection", "error", err)
				return // It goes on with those that there are.
			}
			lanes++
		}
		before = now
	}
}

// openLane opens one more connection for pages.
func (p *Sender) openLane(ctx context.Context, by Lanes) error {
	data, err := by.Dial(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.more = append(p.more, data)
	lanes := len(p.more) + 1
	p.mu.Unlock()
	if err := errors.Join(data.SetCodec(by.Main.Codec()),
		p.AddLane(lane{stream.NewSections(data, nil)})); err != nil {
		return errors.Join(err, data.Close())
	}
	guard.Go(func() error { // it answers, and notices the end
		err := guard.Do(func() error {
			_, err := data.Next()
			return err
		})
		guard.LogPanic(by.Log, err)
		p.Fail(fmt.Errorf("one of the data connections to %s: %w", by.Target, err))
		return nil
	})
	by.Note(fmt.Sprintf("%d data connections: fewer cannot fill the link", lanes))
	return nil
}

// Close ends what carries pages, and whoever waits in it.
func (p *Sender) Close(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Fail(why)
	for _, data := range p.more {
		_ = data.Close()
	}
}
