package agent

import (
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// greeted is this node as other nodes hear of it.
type greeted struct{ agent *Agent }

func (g greeted) Guests() []*api.Location { return g.agent.locations.here() }

func (g greeted) HearGuests(node string, guests []*api.Location) {
	g.agent.locations.heard(node, guests)
}

func (g greeted) Claims() (claims []uint64, known bool) { return g.agent.doubles.here() }

func (g greeted) HearClaims(node string, claims []uint64) { g.agent.doubles.heard(node, claims) }

func (g greeted) Own() (*api.Overlay, error) { return g.agent.ownOverlay() }

func (g greeted) KeyProof(other wireguard.Key, from, to string) ([]byte, error) {
	return g.agent.network.KeyProof(other, from, to)
}

func (g greeted) Changed() { g.agent.setPeers() }

func (g greeted) Removed(node identity.Revocation) { g.agent.nodeRemoved(node) }

func (g greeted) Lost(node string) { g.agent.locations.dropNode(node) }

func (g greeted) Back(node string) {
	g.agent.moves.peerBack(node)
	go g.agent.guarded(func() { g.agent.leases.Repeat(node) })()
}

// nodeRemoved is called when this node hears that a node, perhaps this one, has been removed.
func (a *Agent) nodeRemoved(one identity.Revocation) {
	if one.Number == a.self.Number {
		a.log.Error("this node has been removed from its cluster: other nodes refuse its connections; its "+
			"containers run on. To join again as a new node: \"godwit node join --force\"", "at", one.Time)
		return
	}
	a.log.Warn("node removed from the cluster", "node", one.Name, "number", one.Number, "version",
		one.Version)
	a.locations.dropNode(one.Name)
}
