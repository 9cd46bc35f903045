package cluster

import (
	"crypto/hmac"
	"fmt"
	"sync"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// Overlays are the nodes' statements about their overlays.
type Overlays struct {
	nodes   *Nodes
	sends   Overlay
	changed func() // is called without locks after a change

	mu   sync.Mutex
	said map[string]HeardOverlay // by the name of the node
}

func newOverlays(nodes *Nodes, changed func()) *Overlays {
	return &Overlays{nodes: nodes, changed: changed, said: map[string]HeardOverlay{}}
}

// HeardOverlay is a node's statement how it sends containers' packets, over a connection on which the node
// has proved its identity.
type HeardOverlay struct {
	Kind   string // see network.Overlay.Kind
	Key    wireguard.Key
	proven bool // that the key is that node's own, and not a key of which it has heard
}

// parseOverlay parses the statement. A node without a statement runs a release that sends in the clear.
func parseOverlay(said *api.Overlay) (HeardOverlay, error) {
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

// hear takes a node's statement about its overlay, and updates the network before it returns: a node
// that has this node's answer may send.
func (o *Overlays) hear(from string, said *api.Overlay) error {
	heard, err := parseOverlay(said)
	if err != nil {
		return fmt.Errorf("%w: overlay of node %s: %w", api.ErrInvalid, from, err)
	}
	heard.proven = o.provesKey(from, heard.Key, said.GetProof())
	o.mu.Lock()
	changed, err := o.take(from, heard)
	o.mu.Unlock()
	if changed {
		o.changed()
	}
	return err
}

// provesKey reports whether a node has proved that a key is its own. A node of an earlier release proves
// nothing, nor does a node that does not know this node's key yet: see say.
func (o *Overlays) provesKey(from string, key wireguard.Key, proof []byte) bool {
	if key.IsZero() || len(proof) == 0 {
		return false
	}
	want, err := o.sends.KeyProof(key, from, o.nodes.id.Node.Name)
	return err == nil && hmac.Equal(proof, want)
}

// take notes a node's statement, and reports whether it is new. Of two nodes that announce the same
// key, the one with a proof keeps it, or else the first. The lock must be held.
func (o *Overlays) take(from string, heard HeardOverlay) (changed bool, err error) {
	for name, other := range o.said {
		if name == from || heard.Key.IsZero() || other.Key != heard.Key {
			continue
		}
		if other.proven || !heard.proven {
			return false, fmt.Errorf("%w: node %s announces the overlay key of node %s",
				api.ErrInvalid, from, name)
		}
		o.said[name] = HeardOverlay{Kind: other.Kind}
	}
	before, known := o.said[from]
	changed = !known || before.Kind != heard.Kind || before.Key != heard.Key
	heard.proven = heard.proven || before.proven && before.Key == heard.Key
	o.said[from] = heard
	return changed, nil
}

// Recall notes keys that an earlier process of this agent learnt, by the nodes' numbers.
func (o *Overlays) Recall(keys map[int]wireguard.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, node := range o.nodes.List() {
		if key, ok := keys[node.Number]; ok {
			o.said[node.Name] = HeardOverlay{Kind: network.OverlayWireGuard.Kind(), Key: key}
		}
	}
}

// say returns this node's statement for another node, with a proof that its key is its own if the
// other's key is known.
func (o *Overlays) say(to string) (*api.Overlay, error) {
	said, err := o.sends.Own()
	if err != nil || len(said.GetKey()) == 0 {
		return said, err
	}
	if other := o.Of(to).Key; !other.IsZero() {
		said.Proof, _ = o.sends.KeyProof(other, o.nodes.id.Node.Name, to) // no proof for an invalid key
	}
	return said, nil
}

// Of returns a node's statement about its overlay; the zero value if there is none yet.
func (o *Overlays) Of(name string) HeardOverlay {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said[name]
}

// forget drops the statement of a node that is removed.
func (o *Overlays) forget(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.said, name)
}
