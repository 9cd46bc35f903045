package cluster

import (
	"crypto/hmac"
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// HeardOverlay is a node's statement how it sends containers' packets, over a connection on which the node
// has proved its identity.
type HeardOverlay struct {
	Kind   string // see network.Overlay.Kind
	Key    wireguard.Key
	proven bool // that the key is that node's own, and not a key of which it has heard
}

// overlayOf parses the statement. A node without a statement runs a release that sends in the clear.
func overlayOf(said *api.Overlay) (HeardOverlay, error) {
	if said == nil {
		return HeardOverlay{Kind: network.OverlayVXLAN.Kind()}, nil
	}
	switch said.Kind {
	case network.OverlayVXLAN.Kind():
		return HeardOverlay{Kind: said.Kind}, nil
	case network.OverlayWireGuard.Kind():
		key, err := wireguard.ParseKey(said.Key)
		return HeardOverlay{Kind: said.Kind, Key: key}, err
	}
	return HeardOverlay{}, fmt.Errorf("overlay %.40q is not known here", said.Kind)
}

// hearOverlay takes a node's statement about its overlay, and updates the network before it returns: a node
// that has this node's answer may send.
func (p *Peers) hearOverlay(from string, said *api.Overlay) error {
	heard, err := overlayOf(said)
	if err != nil {
		return fmt.Errorf("%w: overlay of node %s: %w", api.ErrInvalid, from, err)
	}
	heard.proven = p.provesKey(from, heard.Key, said.GetProof())
	p.mu.Lock()
	changed, err := p.takeOverlay(from, heard)
	p.mu.Unlock()
	if changed {
		p.events.Changed()
	}
	return err
}

// provesKey reports whether a node has proved that a key is its own. A node of an earlier release proves
// nothing, nor does a node that does not know this node's key yet: see sayOverlay.
func (p *Peers) provesKey(from string, key wireguard.Key, proof []byte) bool {
	if key.IsZero() || len(proof) == 0 {
		return false
	}
	want, err := p.sends.KeyProof(key, from, p.id.Node.Name)
	return err == nil && hmac.Equal(proof, want)
}

// takeOverlay notes a node's statement, and reports whether it is new. Of two nodes that announce the same
// key, the one with a proof keeps it, or else the first. The lock must be held.
func (p *Peers) takeOverlay(from string, heard HeardOverlay) (changed bool, err error) {
	for name, other := range p.overlays {
		if name == from || heard.Key.IsZero() || other.Key != heard.Key {
			continue
		}
		if other.proven || !heard.proven {
			return false, fmt.Errorf("%w: node %s announces the overlay key of node %s",
				api.ErrInvalid, from, name)
		}
		p.overlays[name] = HeardOverlay{Kind: other.Kind}
	}
	before, known := p.overlays[from]
	changed = !known || before.Kind != heard.Kind || before.Key != heard.Key
	heard.proven = heard.proven || before.proven && before.Key == heard.Key
	p.overlays[from] = heard
	return changed, nil
}

// RecallKeys notes keys that an earlier process of this agent learnt, by the nodes' numbers.
func (p *Peers) RecallKeys(keys map[int]wireguard.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, node := range p.nodes {
		if key, ok := keys[node.Number]; ok {
			p.overlays[node.Name] = HeardOverlay{Kind: network.OverlayWireGuard.Kind(), Key: key}
		}
	}
}

// sayOverlay returns this node's statement for another node, with a proof that its key is its own if the
// other's key is known.
func (p *Peers) sayOverlay(to string) (*api.Overlay, error) {
	said, err := p.sends.Own()
	if err != nil || len(said.GetKey()) == 0 {
		return said, err
	}
	if other := p.OverlayOf(to).Key; !other.IsZero() {
		said.Proof, _ = p.sends.KeyProof(other, p.id.Node.Name, to) // no proof for an invalid key
	}
	return said, nil
}

// OverlayOf returns a node's statement about its overlay; the zero value if there is none yet.
func (p *Peers) OverlayOf(name string) HeardOverlay {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.overlays[name]
}
