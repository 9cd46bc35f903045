package agent

import (
	"path/filepath"

	"github.com/godwit/godwit/internal/attachment"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/lease"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/network"
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
		Self: a.self.Name, Lists: a.lists, Leases: a.leases, Network: a.network, Moves: a.moves,
		Reaches: a.peers.Reaches, Heard: a.kept.Elsewhere, Log: a.log,
	})
}

func newDoubles(a *Agent) *location.Doubles {
	return location.NewDoubles(a.ctx, location.DoublesConfig{
		Self: a.self.Name, Here: a.lists, Engines: a.engines, Moves: a.moves, Log: a.log,
	})
}

// openAttachments makes what looks after the attachments of containers. unopened is why there may be more
// engines whose containers have addresses of the pool.
func openAttachments(a *Agent, unopened error) {
	a.adopter = attachment.NewAdopter(a.ctx, attachment.AdopterConfig{
		Path: filepath.Join(a.config.StateDir, "adoptions.json"), Engines: a.engines, Routed: a.routed,
		Network: a.network, Leases: a.leases, Locations: a.locations, Moves: a.moves,
		Removed: newRemovals(a).Tell, Log: a.log,
	})
	a.bridges = attachment.NewBridges(attachment.BridgesConfig{
		Engines: a.engines, Looks: &a.looks, Network: a.network, Ports: a.network, Moves: a.moves,
		Member: func(number int) bool {
			_, is := a.peers.ByNumber(number)
			return is
		},
		Removed: newRemovals(a).Tell, Log: a.log,
	})
	a.attachments = attachment.New(attachment.Config{
		Engines: a.engines, Own: a.embedded, Addressed: a.lists.Addressed, Unopened: unopened,
		Network: a.network, Routes: a.network, Adopter: a.adopter,
		Runs: a.giveRoom, Log: a.log,
	})
	var networked []attachment.Networked
	for _, one := range a.engines.All() {
		if lister := one.Capabilities().Networks; lister != nil {
			networked = append(networked, lister)
		}
	}
	a.keeper = attachment.NewKeeper(attachment.KeeperConfig{
		Adopter: a.adopter, Bridges: a.bridges,
		Routed: attachment.NewRouted(networked, func(all []network.RoutedNetwork) error {
			return a.network.SetRoutedNetworks(all)
		}, &a.looks, a.log),
		Looks: &a.looks, Network: a.network, Watched: a.watched, Lists: a.lists, Log: a.log,
	})
}
