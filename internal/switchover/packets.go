package switchover

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network/hold"
)

// Hold queues packets for the container; hold.Hold does.
type Hold interface {
	StartNew(to hold.Destination) error
	StartRequests(to hold.Destination) error
	Start() error
	Release(ctx context.Context, to hold.Destination, bitsPerSecond int64) error
	Close() error
	Stats() hold.Stats
}

// Network is this node's network.
type Network interface {
	// Prepare makes a hold that holds nothing yet.
	Prepare(address netip.Addr) (Hold, error)
	Route(address netip.Addr, to hold.Destination) error
	Detach(container string) error
	// Quiesce keeps packets of a frozen container from arriving and leaving, and returns when none does.
	// EndQuiesce undoes that, and may be repeated.
	Quiesce(address netip.Addr) error
	EndQuiesce(address netip.Addr) error
}

// Attachments are the network attachments of the node's containers.
type Attachments interface {
	RouteHere(ctx context.Context, definition engine.Definition) error
	Attach(ctx context.Context, definition engine.Definition) (netns string, err error)
}

// Config is what packets are handled with.
type Config struct {
	Network     Network
	Attachments Attachments
	Container   engine.Definition
	Target      string               // the name of the node
	Held        func(migration.Held) // is told what was held, when it was let go
	Final       func() bool          // the final marker may have left
	Ended       error                // of a Hold whose container was stopped meanwhile
}

// Packets are those of a container that moves away.
type Packets struct {
	config   Config
	hold     Hold         // nil: none is prepared, or an earlier agent had one
	held     bool         // the hold was started
	quiesced func() error // waits until no packet of the frozen container arrives; nil: it may send

	redirecting  sync.Mutex // held while the hold is redirected; guards redirectable
	redirectable Hold       // that the target may redirect to itself; nil: none

	mu      sync.Mutex
	stopped bool // no process of the container is left here
}

// New has packets that are not held.
func New(config Config) *Packets { return &Packets{config: config} }

func (p *Packets) here() hold.Destination {
	return hold.Destination{Container: p.config.Container.ID}
}

func (p *Packets) there() hold.Destination { return hold.Destination{Peer: p.config.Target} }

func (p *Packets) address() netip.Addr { return p.config.Container.Network.Address }

// Prepare makes what will hold packets.
func (p *Packets) Prepare() (err error) {
	p.hold, err = p.config.Network.Prepare(p.address())
	return err
}

// Hold holds packets for the container, those that open connections first, so that no connection is half open
// when settle, which waits for that, returns: then all packets are held.
func (p *Packets) Hold(ctx context.Context, settle func(context.Context) error) error {
	p.held = true
	if err := p.hold.StartNew(p.here()); err != nil {
		return err
	}
	if err := settle(ctx); err != nil {
		return err
	}
	return p.hold.Start()
}

// HoldRequests has those who want to connect wait, until a container runs again that they can connect
// to. All that belongs to connections that there are goes on to the container: it can bring them to
// their end.
func (p *Packets) HoldRequests() error {
	p.held = true
	return p.hold.StartRequests(p.here())
}

// CloseUnused gives up a hold that was prepared, and that holds nothing.
func (p *Packets) CloseUnused() error {
	if p.hold == nil || p.held {
		return nil
	}
	err := p.hold.Close()
	p.hold = nil
	return err
}

// ReleaseHere lets held packets go to the container on this node.
func (p *Packets) ReleaseHere(ctx context.Context) error { return p.release(ctx, p.here()) }

// ReleaseThere lets held packets go to the target, and all that comes after them.
func (p *Packets) ReleaseThere(ctx context.Context) error {
	p.setRedirectable(nil)
	return p.release(ctx, p.there())
}

// release lets held packets go, in order. After a crash of the agent there is no queue left, only a
// route to set.
func (p *Packets) release(ctx context.Context, to hold.Destination) error {
	if p.hold == nil && to == p.here() {
		return p.config.Attachments.RouteHere(ctx, p.config.Container)
	}
	if p.hold == nil {
		return p.config.Network.Route(p.address(), to)
	}
	err := p.hold.Release(ctx, to, 0)
	// it was stopped meanwhile: nobody takes what is held
	if errors.Is(err, p.config.Ended) && to == p.here() {
		err = errors.Join(p.hold.Close(), p.config.Network.Detach(p.config.Container.ID))
	}
	if err != nil {
		return err
	}
	p.config.Held(heldBy(p.hold.Stats()))
	p.hold, p.held = nil, false
	return nil
}

// heldBy says what a hold has held.
func heldBy(stats hold.Stats) migration.Held {
	return migration.Held{
		Packets: stats.HeldPackets, Bytes: stats.HeldBytes, Dropped: stats.DroppedPackets,
		LongestSeconds: stats.LongestHoldSeconds,
	}
}

// Quiesce begins to keep packets from the frozen container, and does not wait.
func (p *Packets) Quiesce() {
	done := guard.Go(func() error { return p.config.Network.Quiesce(p.address()) })
	p.quiesced = sync.OnceValue(func() error { return <-done })
}

// AwaitQuiesced waits until no packet of the frozen container arrives.
func (p *Packets) AwaitQuiesced() error { return p.quiesced() }

// EndQuiesce lets the container be heard again. An earlier agent may have begun what it undoes.
func (p *Packets) EndQuiesce() error {
	if p.quiesced != nil {
		_ = p.quiesced() // the dump has told what was wrong
	}
	return p.config.Network.EndQuiesce(p.address())
}
