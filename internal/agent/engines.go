package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/engines"
)

// openEngines makes the set of engines. See openOthers for unopened.
func openEngines(a *Agent) (unopened, failed error) {
	others, unopened, err := openOthers(a)
	if err != nil {
		return nil, err
	}
	a.engines = engine.NewSet(a.embedded, others...)
	for _, one := range others {
		can := one.Capabilities()
		if can.Addresses == engine.PoolAddresses {
			a.routed = append(a.routed, one)
		}
		if can.Watcher != nil {
			a.watched = can.Watcher
		}
	}
	return unopened, nil
}

// followUp does at the start of the agent what may wait for engines, while it serves: one that hangs delays
// nothing else.
func followUp(ctx context.Context, a *Agent, opened time.Time) {
	for _, one := range a.engines.All() {
		sweeper := one.Capabilities().Sweeper
		if sweeper == nil {
			continue
		}
		go a.guarded(func() {
			if err := sweeper.SweepImages(ctx, opened); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot clean up after moves of containers of other engines", "error", err)
			}
		})()
	}
	go a.guarded(func() { a.attachments.ReconcileOthers(ctx) })()
}

// openOthers opens the other engines. Most may be installed while the agent runs; an engine that has to be
// there at the start (LXC) is left out if it is not. An engine with addresses of the pool that does not work
// keeps nobody from the others: unopened.
func openOthers(a *Agent) (others []engine.Engine, unopened, failed error) {
	for _, kind := range engines.All() {
		if kind.Open == nil {
			continue
		}
		one, err := kind.Open(engine.Config{StateDir: a.config.StateDir, RunDir: a.config.RunDir})
		switch {
		case err == nil:
			others = append(others, one)
			sweep(one.Capabilities(), a.log)
		case errors.Is(err, engine.ErrAway):
		case kind.Addresses == engine.PoolAddresses:
			a.log.Warn("containers of "+kind.Title+" cannot be moved", "error", err)
			unopened = errors.Join(unopened, err)
		default:
			return nil, nil, err
		}
	}
	return others, unopened, nil
}

// sweep removes what an engine's failed moves have left.
func sweep(can engine.Capabilities, log *slog.Logger) {
	if can.Sweeper == nil {
		return
	}
	if err := can.Sweeper.Sweep(); err != nil { // an arrival that it is in the way of tries again, and fails
		log.Warn("cannot clean up after moves of containers of other engines", "error", err)
	}
}
