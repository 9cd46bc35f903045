package wireguard

import (
	"net/netip"
	"slices"
)

// keepalive is the interval, in seconds, at which each peer is sent something. It also makes the device
// start the handshake with a peer as soon as the peer is configured. Otherwise the first packet would wait
// until the other side knows this node (5 s, REKEY_TIMEOUT).
const keepalive = 25

// Peer is another member.
type Peer struct {
	Key      Key
	Endpoint netip.AddrPort // where the peer receives; invalid: the source of its latest packet
	Address  netip.Addr     // the peer's address within the overlay, the only permitted source
}

// State is the configuration of a device.
type State struct {
	Private Key
	Port    int
	Peers   []Peer
}

// change turns one state into another.
type change struct {
	private *Key
	port    *int
	remove  []Key  // first
	set     []Peer // then
}

// isNothing reports whether there is nothing to change.
func (c change) isNothing() bool {
	return c.private == nil && c.port == nil && len(c.remove)+len(c.set) == 0
}

// difference returns the change from the current to the wanted state. It leaves out settings that are
// already right, because WireGuard reopens its sockets whenever its port is set.
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
		if at >= 0 { // removing it ends its sessions, so it starts again from its new endpoint
			c.remove = append(c.remove, peer.Key)
		}
		c.set = append(c.set, peer)
	}
	return c
}
