package anew

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/wire/stream"
)

// KindRedirected is the section by which the target says that packets which open no connection may come.
const KindRedirected = "aimed"

// Hold queues packets for the container; hold.Hold does.
type Hold interface {
	StartRequests(to hold.Destination) error
	Release(ctx context.Context, to hold.Destination, bitsPerSecond int64) error
	Close() error
}

// Network is this node's network.
type Network interface {
	// Prepare makes a hold that holds nothing yet.
	Prepare(address netip.Addr) (Hold, error)
	// RouteHere leads the packets for a container to it.
	RouteHere(ctx context.Context, container engine.Definition) error
}

// Volumes are what both nodes mount. See volumes.Mover.
type Volumes interface {
	Forget(ctx context.Context, container engine.Definition)
	GiveBack(ctx context.Context, container engine.Definition) error
}

// TargetConfig is what a Target is made of.
type TargetConfig struct {
	Container engine.Definition
	PortsJSON []byte // on which the container waits, as the source has told it; empty: not known
	Source    string // the name of the node
	Network   Network
	Volumes   Volumes
	Data      func() *stream.Session      // the connection over which the source is told
	May       func(context.Context) error // asks whether a healthy container may stay
	Log       *slog.Logger
}

// Target starts a container on probation that has moved here, and lets clients in when it is healthy.
type Target struct {
	life   context.Context //nolint:containedctx // The life of the daemon: a container that runs stays.
	config TargetConfig

	mu sync.Mutex
	// new connections wait here, too, during probation; nil: there is none
	hold    Hold
	holding bool // it was started
}

// NewTarget has a container that nothing was prepared for. life is that of the daemon.
func NewTarget(life context.Context, config TargetConfig) *Target {
	return &Target{life: life, config: config}
}

// Expect prepares the start of the container, in a network namespace.
func (t *Target) Expect(ctx context.Context, own engine.Engine, netns string) (engine.Arrival, error) {
	ports, err := decodePorts(t.config.PortsJSON)
	if err != nil {
		return nil, err
	}
	queue, err := t.config.Network.Prepare(t.config.Container.Network.Address)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.hold = queue
	t.mu.Unlock()
	return own.PrepareStart(ctx, t.config.Container, netns, ports)
}

// Start starts the container on probation, and lets clients in when it is healthy. Before, it can
// ask others, and gets their answers; nobody can ask it, so nothing that anybody has been told is
// lost if it does not become healthy.
func (t *Target) Start(ctx context.Context, arrival engine.Arrival) (time.Time, error) {
	t.config.Volumes.Forget(ctx, t.config.Container)
	if err := t.holdRequests(); err != nil {
		return time.Time{}, err
	}
	ask := func() error { return t.config.May(ctx) }
	at, err := arrival.Restore(ctx, engine.Permission{Ask: ask}) // nobody is routed to it yet
	if err != nil {
		t.GiveBack(ctx)
		return time.Time{}, err
	}
	return at, t.LetIn(t.life) // it stays, whoever wants what now
}

const giveBackPatience = 10 * time.Second

// GiveBack lets the source find in shared volumes what the container has written there while
// it was on probation: that is not undone. It does what can be done in some seconds; the source starts
// its own copy again, whatever comes of it.
func (t *Target) GiveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackPatience)
	defer cancel()
	if err := t.config.Volumes.GiveBack(ctx, t.config.Container); err != nil {
		t.config.Log.Warn("cannot hand back shared volumes", "container", t.config.Container.Name, "error",
			err)
	}
}

func (t *Target) here() hold.Destination { return hold.Destination{Container: t.config.Container.ID} }

// holdRequests has those who want to connect wait here, as they do at the source, and has the source
// send on what does not open a connection. That it is not told costs the container the answers to
// what it asks.
func (t *Target) holdRequests() error {
	t.mu.Lock()
	queue := t.hold
	t.holding = true
	t.mu.Unlock()
	if err := queue.StartRequests(t.here()); err != nil {
		return err
	}
	data := t.config.Data()
	if data.Begin(KindRedirected, "") == nil && data.End() == nil {
		_ = data.Push()
	}
	return nil
}

// takeHold gives the hold to who ends it.
func (t *Target) takeHold() (queue Hold, holding bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold, t.holding
}

func (t *Target) dropHold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold, t.holding = nil, false
}

// LetIn lets those who have waited here connect to the container, and all that come after them.
func (t *Target) LetIn(ctx context.Context) error {
	queue, _ := t.takeHold()
	if queue == nil {
		return t.config.Network.RouteHere(ctx, t.config.Container)
	}
	if err := queue.Release(ctx, t.here(), 0); err != nil {
		return err
	}
	t.dropHold()
	return nil
}

// RedirectBack sends the clients that have waited here to the source, where the container is started again.
func (t *Target) RedirectBack(ctx context.Context) error {
	queue, holding := t.takeHold()
	if queue == nil {
		return nil
	}
	err := error(nil)
	if holding {
		err = queue.Release(ctx, hold.Destination{Peer: t.config.Source}, 0)
	} else {
		err = queue.Close()
	}
	if err == nil {
		t.dropHold()
	}
	return err
}
