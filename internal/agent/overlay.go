package agent

import (
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// heardOverlay is how a node says, over a connection on which it has proved who it is, that it sends containers' packets.
type heardOverlay struct {
	kind string // see network.Overlay.Kind
	key  wireguard.Key
}

// overlayOf reads it. A node that says nothing is of a release that sends in the clear.
func overlayOf(said *api.Overlay) (heardOverlay, error) {
	if said == nil {
		return heardOverlay{kind: network.OverlayVXLAN.Kind()}, nil
	}
	switch said.Kind {
	case network.OverlayVXLAN.Kind():
		return heardOverlay{kind: said.Kind}, nil
	case network.OverlayWireGuard.Kind():
		key, err := wireguard.ParseKey(said.Key)
		return heardOverlay{kind: said.Kind, key: key}, err
	}
	return heardOverlay{}, fmt.Errorf("overlay %.40q is not known here", said.Kind)
}

// hearOverlay takes what a node says of its overlay, and has the network follow before it returns: who has this node's
// answer may send.
func (p *peers) hearOverlay(from string, said *api.Overlay) error {
	heard, err := overlayOf(said)
	if err != nil {
		return fmt.Errorf("%w: overlay of node %s: %w", errInvalid, from, err)
	}
	p.mu.Lock()
	for name, other := range p.overlays {
		if name != from && !heard.key.IsZero() && other.key == heard.key {
			p.mu.Unlock()
			return fmt.Errorf("%w: overlay of node %s: its key is that of node %s", errInvalid, from, name)
		}
	}
	before, known := p.overlays[from]
	p.overlays[from] = heard
	p.mu.Unlock()
	if !known || before != heard {
		p.changed()
	}
	return nil
}

// overlay is what a node has said of its own; the zero value if it has not been heard.
func (p *peers) overlay(name string) heardOverlay {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.overlays[name]
}

// ownOverlay is what this node says.
func (a *Agent) ownOverlay() (*api.Overlay, error) {
	key, err := a.network.PublicKey()
	if err != nil {
		return nil, err
	}
	said := &api.Overlay{Kind: a.network.OverlayKind()}
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
	heard := a.peers.overlay(node.Name)
	return network.Peer{
		Name: node.Name, Number: node.Number, Underlay: ip, Key: heard.key,
		Apart: heard.kind != "" && heard.kind != a.network.OverlayKind(),
	}, nil
}

// describeOverlay adds to the description of a node how packets go there.
func (a *Agent) describeOverlay(node *api.Node) {
	if node.Self {
		status, err := a.network.OverlayStatus()
		node.Overlay = status.String()
		if err != nil {
			node.OverlayError = err.Error()
		}
		return
	}
	own := a.network.OverlayKind()
	node.Overlay = a.peers.overlay(node.Name).kind
	if node.Overlay != "" && node.Overlay != own {
		node.OverlayError = fmt.Sprintf("its overlay is %s, that of this node %s: no packets of containers pass between them; "+
			"start both agents with the same --overlay", node.Overlay, own)
	}
}
