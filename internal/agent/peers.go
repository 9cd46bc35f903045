package agent

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/network"
)

func openNetwork(a *Agent) error {
	underlay, err := hostAddress(a.self.Address)
	if err != nil {
		return err
	}
	a.network, err = network.New(network.Config{
		NodeName: a.self.Name, NodeNumber: a.self.Number, Pool: a.id.Pool, Underlay: underlay,
		RunDir: a.config.RunDir, StateDir: a.config.StateDir, Overlay: a.config.Overlay, Log: a.log,
	})
	if err != nil {
		return err
	}
	obstacles, err := a.network.Obstacles()
	if err != nil {
		a.log.Warn("cannot check for firewall rules and networks that block containers' "+
			"packets", "error", err)
	}
	for _, one := range obstacles {
		a.log.Warn("packets of containers may not arrive", "why", one.What, "remedy", one.Remedy)
	}
	return nil
}

// hostAddress is the IP address of a node.
func hostAddress(address string) (netip.Addr, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("address of a node %q: %w", address, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	resolved, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("address of a node %q: %w", address, err)
	}
	ip, _ := netip.AddrFromSlice(resolved.IP)
	return ip.Unmap(), nil
}

// setPeers tells the network which nodes there are. A node whose name cannot be resolved now is
// left out, and the next change brings it in.
func setPeers(a *Agent) {
	a.settingPeers.Lock() // so that what is known last is said last
	defer a.settingPeers.Unlock()
	var peers []network.Peer
	for _, node := range a.peers.Others() {
		peer, err := overlay{a}.peerOf(node)
		if err != nil {
			a.log.Warn("node left out", "node", node.Name, "error", err)
			continue
		}
		peers = append(peers, peer)
	}
	peers, contradictions := a.network.Tunnel().Consistent(peers)
	for _, one := range contradictions {
		a.log.Warn("node left out of the overlay", "error", one)
	}
	if err := a.network.SetPeers(peers); err != nil {
		a.log.Error("routes to other nodes", "error", err)
	}
}

func newPeers(a *Agent) (*cluster.Peers, error) {
	return cluster.New(cluster.Config{
		ID: a.id, State: a.config.StateDir, Version: a.config.Version, Timeout: a.config.callTimeout(),
		Refused: a.config.Policy.Refused(admission.ModeNames()), Log: a.log,
	})
}
