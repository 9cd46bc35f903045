package cluster

import (
	"crypto/hmac"
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// HeardOverlay is how a node says, over a connection on which it has proved who it is, that it sends
// containers' packets.
type HeardOverlay struct {
	Kind   string // see network.Overlay.Kind
	Key    wireguard.Key
	proven bool // that the key is that node's own, and not one of which it has heard
}

// overlayOf reads it. A node that says nothing is of a release that sends in the clear.
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

// hearOverlay takes what a node says of its overlay, and has the network follow before it returns: who has
// this node's answer may send.
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

// provesKey tells whether a node has proved that a key is its own. A node of an earlier release proves
// nothing, nor does one that does not know this node's key yet: see sayOverlay.
func (p *Peers) provesKey(from string, key wireguard.Key, proof []byte) bool {
	if key.IsZero() || len(proof) == 0 {
		return false
	}
	want, err := p.sends.KeyProof(key, from, p.id.Node.Name)
	return err == nil && hmac.Equal(proof, want)
}

// takeOverlay notes what a node says, and tells whether that is new. Of two nodes that announce one key the
// one that has proved it keeps it, or else the one that was first. The lock must be held.
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

// RecallKeys notes the keys that an earlier process of this agent had from the nodes with these numbers.
func (p *Peers) RecallKeys(keys map[int]wireguard.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, node := range p.nodes {
		if key, ok := keys[node.Number]; ok {
			p.overlays[node.Name] = HeardOverlay{Kind: network.OverlayWireGuard.Kind(), Key: key}
		}
	}
}

// sayOverlay is what this node says to another one, with the proof that its key is its own if that one's
// key is known.
func (p *Peers) sayOverlay(to string) (*api.Overlay, error) {
	said, err := p.sends.Own()
	if err != nil || len(said.GetKey()) == 0 {
		return said, err
	}
	if other := p.OverlayOf(to).Key; !other.IsZero() {
		said.Proof, _ = p.sends.KeyProof(other, p.id.Node.Name, to) // none to what is no key of anybody's
	}
	return said, nil
}

// OverlayOf is what a node has said of its own; the zero value if it has not been heard.
func (p *Peers) OverlayOf(name string) HeardOverlay {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.overlays[name]
}
