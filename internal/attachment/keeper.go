package attachment

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/patience"
)

// KeeperConfig is the configuration of a Keeper.
type KeeperConfig struct {
	Adopter *Adopter
	Bridges *Bridges
	Routed  *Routed
	Looks   *inventory.Looks
	Network Lasting
	Watched Watched
	Lists   Lists
	Log     *slog.Logger
}

// Lasting is of a network what other programs may undo at any time. See network.Network.
type Lasting interface {
	KeepPassing() error
	KeepOverlay() error
}

// Watched is the engine that tells of its containers.
type Watched interface {
	engine.Engine
	// Watch calls watching when the engine begins to tell of changes, and changed at each of them, until
	// that ends.
	Watch(ctx context.Context, watching, changed func()) error
}

// Lists are the containers as engines have listed them. See inventory.Lists.
type Lists interface {
	SetWatching(is bool)
	Changed(of engine.Engine)
}

// Keeper looks after the attachments of this node's containers.
type Keeper struct {
	config KeeperConfig
	soon   chan struct{} // something has moved: its end here is to be seen at once, too
	took   atomic.Int64  // how long it took to look at all of them, a time.Duration
}

// NewKeeper does nothing yet.
func NewKeeper(config KeeperConfig) *Keeper {
	return &Keeper{config: config, soon: make(chan struct{}, 1)}
}

// adoptEvery is how often the containers of other engines are looked at: they start and end without
// telling the agent.
const adoptEvery = 3 * time.Second

// Run looks after all attachments until ctx ends. Whatever asks an engine is a look of its own.
func (k *Keeper) Run(ctx context.Context) {
	// by id, so that a lasting error is told once
	told, toldOfRouted := inventory.Told{}, inventory.Told{}
	for {
		began := time.Now()
		k.config.Looks.Look("containers with addresses", guard.Logged(k.config.Log, func() {
			k.tell(ctx, toldOfRouted, "containers that no longer exist", k.config.Adopter.forgetRemoved(ctx))
			k.config.Adopter.all(ctx, toldOfRouted)
		}))
		err := errors.Join(k.config.Routed.follow(ctx), k.config.Network.KeepPassing())
		k.tell(ctx, told, "networks of engines", err)
		k.tell(ctx, told, "overlay between nodes", k.config.Network.KeepOverlay())
		k.config.Bridges.follow(ctx)
		k.took.Store(int64(time.Since(began)))
		select {
		case <-ctx.Done():
			return
		case <-time.After(adoptEvery):
		case <-k.soon:
		}
	}
}

// tell logs an error, unless it is what was told last.
func (k *Keeper) tell(ctx context.Context, told inventory.Told, what string, err error) {
	if told.News(what, err) && ctx.Err() == nil {
		k.config.Log.Warn(what, "error", err)
	}
}

// watchPause is how long nobody looks again because of what an engine tells, at least: it may start
// and end many containers.
const watchPause = 300 * time.Millisecond

// pauseAfter is that for a look that took so long: it asks engines that have other things to do
// about all containers.
func pauseAfter(took time.Duration) time.Duration { return min(max(watchPause, 10*took), adoptEvery) }

// Watch has all containers looked at as soon as an engine tells that one of its own has begun
// or ended, which may have the address of one that has left. What it does not tell, or while it cannot,
// is seen when all are looked at anyway.
func (k *Keeper) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		_ = k.config.Watched.Watch(ctx, func() { k.config.Lists.SetWatching(true) }, func() {
			k.config.Lists.Changed(k.config.Watched)
			k.Look()
			_ = patience.Until(ctx, time.Now().Add(pauseAfter(time.Duration(k.took.Load()))))
		})
		k.config.Lists.SetWatching(false)
		_ = patience.Until(ctx, time.Now().Add(adoptEvery))
	}
}

// Look has all containers looked at now.
func (k *Keeper) Look() {
	select {
	case k.soon <- struct{}{}:
	default: // that is about to happen
	}
}
