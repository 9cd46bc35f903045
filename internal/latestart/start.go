package latestart

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
)

// Is reports whether the engine must be told when to start a container.
func Is(of engine.Engine, definition engine.Definition) bool {
	starter := of.Capabilities().LateStarter
	return starter != nil && starter.StartsLate(definition)
}

// ErrPatience ends a move before the target's engine stops waiting for the container to start.
var ErrPatience = errors.New("the start timeout of the target's engine is about to expire: reduce " +
	"the state that is sent during the freeze")

// Network is this node's network.
type Network interface {
	// ResaveConntrack keeps the conntrack entries of a container whose engine makes its network now.
	ResaveConntrack(container string, address netip.Addr) error
	// SuppressARP keeps an address from being heard of on a bridge, and AllowARP undoes that.
	SuppressARP(address netip.Addr, mac string) error
	AllowARP(address netip.Addr) error
}

// Config is what a start is made of.
type Config struct {
	Container engine.Definition
	Network   Network
	// Unwritten calls start while nothing is written to the container's trees.
	Unwritten func(start func() error) error
	// OnBridge adopts the container on a bridge of its engine.
	OnBridge func(ctx context.Context, arrival engine.Arrival) error
	Started  func()                        // is called when the engine has started the container
	Answer   func(kind, name string) error // tells the source
}

// Start starts the container; it is at the target.
type Start struct {
	config Config
	begun  bool
}

// NewStart makes the start of a container.
func NewStart(config Config) *Start { return &Start{config: config} }

// Do has the engine start the container while no files arrive, and answers the source. Before the engine
// gives up the start, Do gives up the move, because nothing that arrives later could be used. The container
// then goes on at the source.
func (s *Start) Do(ctx context.Context, arrival engine.Arrival, giveUp context.CancelCauseFunc) error {
	late, is := arrival.(engine.LateArrival)
	if !is || s.begun {
		return fmt.Errorf("%w: the container is started already", api.ErrInvalid)
	}
	s.begun = true
	own := s.config.Container
	if err := s.config.Network.ResaveConntrack(own.ID, own.Network.Address); err != nil {
		return err
	}
	if err := s.suppressed(ctx, late); err != nil {
		return err
	}
	s.config.Started()
	limit(late.Until(), giveUp)
	return s.config.Answer(KindReady, "")
}

// suppressed makes the engine start the container while no files arrive. Nobody on a bridge of this node
// hears of the container before its namespace is blocked; if the start fails, not until it is discarded.
func (s *Start) suppressed(ctx context.Context, arrival engine.LateArrival) error {
	own := s.config.Container.Network
	if own.OnBridge() {
		if err := s.config.Network.SuppressARP(own.Address, own.MAC); err != nil {
			return err
		}
	}
	err := s.config.Unwritten(func() error { return arrival.Start(ctx) })
	if err == nil {
		err = s.config.OnBridge(ctx, arrival)
	}
	if err != nil {
		return err
	}
	return s.config.Network.AllowARP(own.Address)
}

// limit calls giveUp at a time; at none if the time is zero.
func limit(until time.Time, giveUp context.CancelCauseFunc) {
	if !until.IsZero() {
		// after the restore, giveUp has no effect
		time.AfterFunc(time.Until(until), func() { giveUp(ErrPatience) })
	}
}
