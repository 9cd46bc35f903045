package network

import (
	"net/netip"
)

// IsBridged reports whether the container is recorded as being on a bridge.
func (n *Network) IsBridged(id string, ip netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.bridged[ip]
	return one != nil && one.Container == id
}

// BridgedPlace says where a container on a bridge is.
type BridgedPlace struct {
	Container string
	Address   netip.Addr
	Here      bool   // attached here, even while leaving
	Via       string // peer to which its packets go; empty: none
	Came      bool   // arrived from another node
	Arriving  bool   // arrived, but not known yet whether it will run here
}

// Stable reports whether the container has come from another node and is nowhere else.
func (p BridgedPlace) Stable() bool { return p.Here && p.Came && !p.Arriving && p.Via == "" }

// BridgedPlaces lists the recorded containers on bridges.
func (n *Network) BridgedPlaces() []BridgedPlace {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []BridgedPlace
	for ip, one := range n.bridged {
		all = append(all, BridgedPlace{
			Container: one.Container, Address: ip, Here: one.Here, Via: n.tunnel.Peers()[one.Via].Name,
			Came: one.Origin != 0, Arriving: one.Arriving,
		})
	}
	return all
}
