package agent

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/wire/stream"
)

// stagePatience is how long the other node of a stage may be silent. Nobody is frozen meanwhile, so
// it is longer than in a migration.
func (c Config) stagePatience() time.Duration { return 3 * c.peerTimeout() }

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
