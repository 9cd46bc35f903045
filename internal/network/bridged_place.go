package network

import "net/netip"

// IsBridged tells whether this container on a bridge is known here.
func (n *Network) IsBridged(id string, ip netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.bridged[ip]
	return one != nil && one.Container == id
}

// BridgedPlace is a container on a bridge, and where it is.
type BridgedPlace struct {
	Container string
	Address   netip.Addr
	Here      bool   // attached here, also while it leaves
	Via       string // the peer to which its packets go; empty: none
	Came      bool   // from another node
	Arriving  bool   // from there, and it is not known yet whether it will run here
}

// Settled tells whether it has come from another node and is nowhere else.
func (p BridgedPlace) Settled() bool { return p.Here && p.Came && !p.Arriving && p.Via == "" }

// BridgedPlaces lists the containers on bridges of which something is remembered.
func (n *Network) BridgedPlaces() []BridgedPlace {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []BridgedPlace
	for ip, one := range n.bridged {
		all = append(all, BridgedPlace{
			Container: one.Container, Address: ip, Here: one.Here, Via: n.peers[one.Via].Name, Came: one.Origin != 0, Arriving: one.Arriving,
		})
	}
	return all
}
