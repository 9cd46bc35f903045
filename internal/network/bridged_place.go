package network

import (
	"net/netip"
)

// IsBridged reports whether the container is recorded as being on a bridge.
func (n *onBridges) IsBridged(id string, ip netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	one, is := n.records.at(ip)
	return is && one.Container == id
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
func (n *onBridges) BridgedPlaces() []BridgedPlace {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []BridgedPlace
	for _, one := range n.records.list() {
		all = append(all, BridgedPlace{
			Container: one.Container, Address: one.Address, Here: one.Here,
			Via: n.tunnel.Peers()[one.Via].Name, Came: one.Origin != 0, Arriving: one.Arriving,
		})
	}
	return all
}
