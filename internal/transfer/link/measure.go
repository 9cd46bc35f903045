package link

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Measure opens the connection's window and chooses the codec by what it carries. If the bandwidth
// is known, or all that is to leave is so little, a window is enough that holds so much; 0: the
// link's.
func (l *Link) Measure(ctx context.Context, enough int64) error {
	known := l.config.Peers.WayTo(l.config.Target)
	unknown := known.BandwidthBitsPerSecond == 0 || known.Seen > l.config.Fresh.Seconds()
	if unknown && (enough > predict.LittleState || l.config.Mode != migration.Cold) {
		enough = 0
	}
	budget := stream.Budget{Enough: enough}
	if !unknown {
		budget.BitsPerSecond = known.BandwidthBitsPerSecond
	}
	data := l.Data()
	link, err := data.Warm(ctx, budget)
	if err != nil {
		return fmt.Errorf("measure the link to %s: %w", l.config.Target, err)
	}
	switch {
	case enough == 0:
		l.config.Peers.NoteLink(l.config.Target, link)
	default: // what little shows is not exact
		link.BandwidthBitsPerSecond = known.BandwidthBitsPerSecond
	}
	choice := stream.Choose(link.BandwidthBitsPerSecond, l.config.Cores)
	if err := data.SetCodec(choice.Codec); err != nil {
		return err
	}
	l.config.Figures.Measured(link, choice, l.config.Settings.Get().BandwidthLimit)
	l.config.Figures.Clock(link.Clock)
	return nil
}

// MeasureBeside measures while the target gets ready; Warm waits for the result.
func (l *Link) MeasureBeside(ctx context.Context, enough int64) {
	l.warming = guard.Go(func() error { return l.Measure(ctx, enough) })
}

// Warm opens the window of the data connection just before it counts, so that it holds so much, unless that
// is being done. What was staged may have taken long, and an idle connection loses its window.
func (l *Link) Warm(ctx context.Context, enough int64) error {
	if l.warming != nil {
		select {
		case err := <-l.warming:
			l.warming = nil
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return l.warm(ctx, stream.Budget{Enough: enough,
		BitsPerSecond: l.config.Figures.Link().BandwidthBitsPerSecond})
}

// WarmFully opens the window of the data connection as far as the link needs.
func (l *Link) WarmFully(ctx context.Context) error { return l.warm(ctx, stream.Budget{}) }

func (l *Link) warm(ctx context.Context, budget stream.Budget) error {
	link, err := l.Data().Warm(ctx, budget)
	if err == nil {
		l.config.Figures.Clock(link.Clock)
	}
	return err
}
