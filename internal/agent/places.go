package agent

import (
	"path/filepath"

	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/lease"
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
