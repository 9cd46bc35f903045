package agent

import (
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// told are the containers of this node, as other nodes hear of them.
type told struct {
	*location.Locations
	*location.Doubles
}

// greeted is this node as other nodes hear of it.
type greeted struct{ agent *Agent }

func (g greeted) Own() (*api.Overlay, error) { return overlay(g).own() }

func (g greeted) KeyProof(other wireguard.Key, from, to string) ([]byte, error) {
	return g.agent.network.Tunnel().KeyProof(other, from, to)
}

func (g greeted) Changed() { setPeers(g.agent) }

func (g greeted) Removed(node identity.Revocation) { nodeRemoved(g.agent, node) }

func (g greeted) Lost(node string) { g.agent.locations.DropNode(node) }

func (g greeted) Back(node string) {
	g.agent.moves.PeerBack(node)
	go g.agent.guarded(func() { g.agent.leases.Repeat(node) })()
}

// nodeRemoved is called when this node hears that a node, perhaps this one, has been removed.
func nodeRemoved(a *Agent, one identity.Revocation) {
	if one.Number == a.self.Number {
		a.log.Error("this node has been removed from its cluster: other nodes refuse its connections; its "+
			"containers run on. To join again as a new node: \"godwit node join --force\"", "at", one.Time)
		return
	}
	a.log.Warn("node removed from the cluster", "node", one.Name, "number", one.Number, "version",
		one.Version)
	a.locations.DropNode(one.Name)
}
