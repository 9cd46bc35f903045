package attachment

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/network"
)

// Networked is an engine that may have routed networks.
type Networked interface {
	Name() string
	RoutedNetworks(ctx context.Context) ([]engine.RoutedNetwork, error)
}

// networkList holds the routed networks of an engine, as the engine last listed them.
type networkList struct {
	engine Networked

	mu    sync.Mutex
	known []network.RoutedNetwork
	err   error // of the last answer
}

// ask asks the engine. If the engine is away or does not answer, its known networks stay.
func (l *networkList) ask(ctx context.Context) {
	found, err := l.engine.RoutedNetworks(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = nil
	switch {
	case err == nil:
		l.known = nil
		for _, routed := range found {
			l.known = append(l.known, network.RoutedNetwork{Device: routed.Device, Subnet: routed.Subnet})
		}
	case !errors.Is(err, engine.ErrAway):
		l.err = err
	}
}

func (l *networkList) told() (known []network.RoutedNetwork, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known, l.err
}

// Routed are the routed networks of all engines.
type Routed struct {
	lists []*networkList
	set   func(networks []network.RoutedNetwork) error
	looks *inventory.Looks
	log   *slog.Logger
}

// NewRouted asks none of these engines yet. set makes the routes, see network.Network.SetRoutedNetworks.
func NewRouted(engines []Networked, set func([]network.RoutedNetwork) error, looks *inventory.Looks,
	log *slog.Logger) *Routed {
	r := &Routed{set: set, looks: looks, log: log}
	for _, one := range engines {
		r.lists = append(r.lists, &networkList{engine: one})
	}
	return r
}

// follow makes the routes of the engines' routed networks.
func (r *Routed) follow(ctx context.Context) error {
	known, err := r.networks(ctx)
	return errors.Join(err, r.set(known))
}

// networks returns the networks that the engines have reported. An engine that hangs does not delay
// the networks of other engines; its own networks stay as it last reported them.
func (r *Routed) networks(ctx context.Context) (all []network.RoutedNetwork, err error) {
	for _, one := range r.lists {
		r.looks.Look("networks of "+one.engine.Name(), guard.Logged(r.log, func() { one.ask(ctx) }))
		known, failed := one.told()
		all, err = append(all, known...), errors.Join(err, failed)
	}
	return all, err
}
