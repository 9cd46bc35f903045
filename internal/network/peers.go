package network

import (
	"github.com/godwit/godwit/internal/network/filter"
)

// SetPeers replaces the list of other nodes: nodes not in it are forgotten, with the routes through them.
func (n *Network) SetPeers(peers []Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	wanted, err := n.tunnel.CheckPeers(peers)
	if err != nil {
		return err
	}
	// The packet filter must let a new peer in before the first packet can come.
	if err := n.filter.SetPeers(n.filterPeers(wanted)); err != nil {
		return err
	}
	if err := n.tunnel.SetPeers(wanted); err != nil {
		return err
	}
	return n.onBridges.routeBridged()
}

// filterPeers describes peers for the packet filter.
func (n *Network) filterPeers(peers map[int]Peer) map[int]filter.Peer {
	all := map[int]filter.Peer{}
	for number, peer := range peers {
		one := filter.Peer{Underlay: peer.Underlay}
		if !peer.Apart {
			one.End = n.tunnel.End(peer)
		}
		all[number] = one
	}
	return all
}
