package postcopy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/wire/stream"
)

// ErrSilent means that nothing came from the peer for as long as Silence allows: the link or the peer is
// gone.
var ErrSilent = errors.New("the peer is silent")

// pulse remembers when the peer last gave a sign of life.
type pulse struct {
	began time.Time
	last  atomic.Int64 // nanoseconds after began
}

func (p *pulse) beat() { p.last.Store(int64(time.Since(p.began))) }

// silent returns the time since the last sign of life.
func (p *pulse) silent() time.Duration { return time.Since(p.began) - time.Duration(p.last.Load()) }

// watch returns an error when the peer is silent for too long. It asks for a sign of life if the session
// can: a ping is answered even before a client runs at the other end.
func (p *pulse) watch(ctx context.Context, over <-chan struct{}, s Session, silence time.Duration) error {
	if silence <= 0 {
		return nil
	}
	pinger, ok := s.(interface {
		Ping(ctx context.Context) (stream.Sample, error)
	})
	ticker := time.NewTicker(silence / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case <-ticker.C:
		}
		if ok && p.silent() >= silence/4 {
			patience, cancel := context.WithTimeout(ctx, silence/4)
			if _, err := pinger.Ping(patience); err == nil {
				p.beat()
			}
			cancel()
		}
		if silent := p.silent(); silent >= silence {
			return fmt.Errorf("%w: nothing came for %.1f s", ErrSilent, silent.Seconds())
		}
	}
}
