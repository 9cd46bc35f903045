package agent

import (
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// ownOverlay is what this node says.
func (a *Agent) ownOverlay() (*api.Overlay, error) {
	key, err := a.network.Tunnel().PublicKey()
	if err != nil {
		return nil, err
	}
	said := &api.Overlay{Kind: a.network.Tunnel().OverlayKind()}
	if !key.IsZero() {
		said.Key = key[:]
	}
	return said, nil
}

// peerOf is a node as the network needs it. The address of one whose name cannot be resolved now is an error.
func (a *Agent) peerOf(node identity.Node) (network.Peer, error) {
	ip, err := hostAddress(node.Address)
	if err != nil {
		return network.Peer{}, err
	}
	heard := a.peers.Overlays.Of(node.Name)
	return network.Peer{
		Name: node.Name, Number: node.Number, Underlay: ip, Key: heard.Key,
		Apart: heard.Kind != "" && heard.Kind != a.network.Tunnel().OverlayKind(),
	}, nil
}

// describeOverlay adds to the description of a node how packets go there.
func (a *Agent) describeOverlay(node *api.Node) {
	if node.Self {
		status, err := a.network.Tunnel().OverlayStatus()
		node.Overlay = status.String()
		if err != nil {
			node.OverlayError = err.Error()
		}
		return
	}
	own := a.network.Tunnel().OverlayKind()
	node.Overlay = a.peers.Overlays.Of(node.Name).Kind
	if node.Overlay != "" && node.Overlay != own {
		node.OverlayError = fmt.Sprintf("its overlay is %s, that of this node %s: no packets of containers "+
			"pass between them; start both agents with the same --overlay", node.Overlay, own)
	}
}
