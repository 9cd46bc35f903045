package agent

import (
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// overlay is how packets of containers go between this node and others.
type overlay struct{ agent *Agent }

// own is what this node says.
func (o overlay) own() (*api.Overlay, error) {
	key, err := o.agent.network.Tunnel().PublicKey()
	if err != nil {
		return nil, err
	}
	said := &api.Overlay{Kind: o.agent.network.Tunnel().OverlayKind()}
	if !key.IsZero() {
		said.Key = key[:]
	}
	return said, nil
}

// peerOf is a node as the network needs it. The address of one whose name cannot be resolved now is an error.
func (o overlay) peerOf(node identity.Node) (network.Peer, error) {
	ip, err := hostAddress(node.Address)
	if err != nil {
		return network.Peer{}, err
	}
	heard := o.agent.peers.Overlays.Of(node.Name)
	return network.Peer{
		Name: node.Name, Number: node.Number, Underlay: ip, Key: heard.Key,
		Apart: heard.Kind != "" && heard.Kind != o.agent.network.Tunnel().OverlayKind(),
	}, nil
}

// describe adds to the description of a node how packets go there.
func (o overlay) describe(node *api.Node) {
	if node.Self {
		status, err := o.agent.network.Tunnel().OverlayStatus()
		node.Overlay = status.String()
		if err != nil {
			node.OverlayError = err.Error()
		}
		return
	}
	own := o.agent.network.Tunnel().OverlayKind()
	node.Overlay = o.agent.peers.Overlays.Of(node.Name).Kind
	if node.Overlay != "" && node.Overlay != own {
		node.OverlayError = fmt.Sprintf("its overlay is %s, that of this node %s: no packets of containers "+
			"pass between them; start both agents with the same --overlay", node.Overlay, own)
	}
}
