package wireguard

import (
	"net/netip"
	"slices"
)

// keepalive is how often a peer hears something, in seconds. It also has the device begin with a
// peer as soon as it is told of it: otherwise the first packet would wait until the other side
// knows this one (5 s, REKEY_TIMEOUT).
const keepalive = 25

// Peer is another member.
type Peer struct {
	Key      Key
	Endpoint netip.AddrPort // where it receives; invalid: where it was last heard from
	Address  netip.Addr     // its address within the overlay, the only one that it may send from
}

// State is the configuration of a device.
type State struct {
	Private Key
	Port    int
	Peers   []Peer
}

// change is what makes one state another.
type change struct {
	private *Key
	port    *int
	remove  []Key  // first
	set     []Peer // then
}

// isNothing tells that there is nothing to do.
func (c change) isNothing() bool {
	return c.private == nil && c.port == nil && len(c.remove)+len(c.set) == 0
}

// difference is what is to be done to have what is wanted. What is so already is left alone:
// WireGuard opens its sockets anew when it is told its port.
func difference(have, want State) change {
	var c change
	if have.Private != want.Private {
		c.private = &want.Private
	}
	if have.Port != want.Port {
		c.port = &want.Port
	}
	for _, peer := range have.Peers {
		if !slices.ContainsFunc(want.Peers, func(p Peer) bool { return p.Key == peer.Key }) {
			c.remove = append(c.remove, peer.Key)
		}
	}
	for _, peer := range want.Peers {
		at := slices.IndexFunc(have.Peers, func(p Peer) bool { return p.Key == peer.Key })
		if at >= 0 && !peer.Endpoint.IsValid() {
			peer.Endpoint = have.Peers[at].Endpoint
		}
		if at >= 0 && have.Peers[at] == peer {
			continue
		}
		if at >= 0 { // its sessions end, too: it begins anew from where it is now
			c.remove = append(c.remove, peer.Key)
		}
		c.set = append(c.set, peer)
	}
	return c
}
