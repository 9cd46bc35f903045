package staging

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/wire/stream"
)

// signsOfLife are asked for in the time after which silence counts as loss: some may be late.
const signsOfLife = 5

// watchLink calls lost when the peer of a data connection has not answered for too long, and
// returns when that or ctx has ended. A link that breaks tells nobody, and TCP has nothing to find
// out as long as nothing is sent.
func watchLink(ctx context.Context, data *stream.Session, patience time.Duration, lost func(error)) {
	tick := time.NewTicker(patience / signsOfLife)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(ctx, patience)
		_, err := data.Ping(limited)
		cancel()
		if err != nil {
			lost(err)
			return
		}
	}
}

// waitFor waits for a channel to be closed.
func waitFor(ctx context.Context, closed <-chan struct{}) error {
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
