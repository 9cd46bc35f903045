package agent

import (
	"path/filepath"

	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/lease"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/migration"
)

// Here the packages get what they need that know where containers are, and what their addresses need.

func newLists(a *Agent) *inventory.Lists {
	return inventory.New(inventory.Config{
		Engines: a.engines, Own: a.embedded, Watched: a.watched, Routed: a.routed, Every: cluster.HelloEvery,
	})
}

func newLeases(a *Agent) *lease.Leases {
	return lease.New(a.ctx, lease.Config{
		Path: filepath.Join(a.config.StateDir, "releases.json"), Self: a.self.Number,
		Network: a.network, Nodes: a.peers, Timeout: a.config.peerTimeout(), Every: cluster.HelloEvery,
		Gone: func(definition engine.Definition) { a.lists.Changed(a.engines.EngineFor(definition)) },
		Log:  a.log,
	})
}

func newLocations(a *Agent) *location.Locations {
	return location.New(a.ctx, location.Config{
		Self: a.self.Name, Lists: a.lists, Leases: a.leases, Network: a.network, Moves: known{a},
		Reaches: a.peers.Reaches, Heard: a.kept.Elsewhere, Log: a.log,
	})
}

func newDoubles(a *Agent) *location.Doubles {
	return location.NewDoubles(a.ctx, location.DoublesConfig{
		Self: a.self.Name, Here: a.lists, Engines: a.engines, Moves: known{a}, Log: a.log,
	})
}

// known is what migrations on this node know of its containers. The migrations are made after those who ask.
type known struct{ agent *Agent }

// Moving reports whether a migration on this node says where a container is.
func (k known) Moving(container string) bool { return k.agent.moves.moving(container) }

// AllMoving are the containers of which that is so.
func (k known) AllMoving() map[string]bool { return k.agent.moves.containers() }

// Departed reports whether a container that is still on this node runs at another one.
func (k known) Departed(container string) bool {
	moving := k.agent.moves.of(container)
	return moving != nil && moving.tracker.spec.Side == migration.Source &&
		moving.record().State == migration.Committed
}
