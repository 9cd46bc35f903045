package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/bridge"
	"github.com/godwit/godwit/internal/network/filter"
	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
	"github.com/godwit/godwit/internal/network/tunnel"
)

// Network is the containers' network on one node. Its methods may be called concurrently. It wires parts
// together; those that are embedded have their methods here, too.
type Network struct {
	*node
	*containers
	*onBridges
	plugs      *plugs
	devices    *holdDevices
	forwarding *forwarding
	leases     *pool.Leases // made by setUp
	suppressed *filter.Suppression
	watching   sync.WaitGroup // see bridgesChanged
}

// node is what the parts of a node's network share.
type node struct {
	config Config
	ns     netns.NsHandle
	links  *netlink.Handle
	pool   pool.Pool
	holds  *hold.Set // has its own lock, which is taken after mu
	// each has its own lock, which is taken after mu
	filter  *filter.Filter // made by setUp
	tunnel  *tunnel.Tunnel
	bridges *bridge.Bridges
	routes  rtnl.Routes // complete after setUp

	mu         sync.Mutex // of the parts that have no lock of their own
	background sync.WaitGroup
	closed     chan struct{} // closed when Close begins
}

// NetnsPath returns the path at which the network namespace of an attached container is mounted.
func (n *node) NetnsPath(id string) string { return filepath.Join(n.config.RunDir, "netns", id) }

// New brings up the network of a node: the tunnel, the node's address, the blackholes and the packet
// filter. It takes over what an earlier process left, so traffic of running containers is not disturbed;
// Reconcile removes the rest.
func New(config Config) (*Network, error) {
	n, err := open(config)
	if err != nil {
		return nil, err
	}
	if err := n.setUp(); err != nil {
		return nil, errors.Join(fmt.Errorf("set up the network of node %s: %w", n.config.NodeName, err),
			n.Close())
	}
	return n, nil
}

// open makes the handles and changes nothing.
func open(config Config) (*Network, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	ns, err := namespace.Open(config.Namespace)
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a netlink socket: %w", err), ns.Close())
	}
	shared := &node{
		config: config, pool: config.pool(), ns: ns, links: handle, bridges: bridge.New(ns, handle),
		routes: rtnl.Routes{Links: handle, Pool: config.pool()},
		filter: filter.New(filter.Config{Namespace: ns}), closed: make(chan struct{}),
	}
	shared.tunnel = tunnel.New(tunnel.Config{NodeName: config.NodeName, Pool: shared.pool,
		Underlay: config.Underlay, Port: config.Port, Overlay: config.Overlay, MTU: config.MTU,
		RunDir: config.RunDir, StateDir: config.StateDir, Namespace: ns, Links: handle})
	return assemble(shared), nil
}

// assemble makes the network of its parts, the lowest first.
func assemble(shared *node) *Network {
	config := shared.config
	n := &Network{
		node: shared, containers: &containers{node: shared, all: map[string]*attachment{}},
		forwarding: &forwarding{shared}, suppressed: filter.NewSuppression(shared.ns, config.Log),
	}
	known := newRecords(filepath.Join(config.StateDir, "bridged.json"))
	routed := &routedNetworks{node: shared}
	n.plugs = &plugs{node: shared, containers: n.containers, records: known}
	n.devices = &holdDevices{node: shared, plugs: n.plugs, tables: map[int]*tun{}}
	n.onBridges = &onBridges{
		node: shared, containers: n.containers, records: known, plugs: n.plugs, routed: routed,
		neighbours: &neighbours{node: shared, containers: n.containers, records: known, routed: routed},
		passages: foreign.NewPasses(foreign.PassesConfig{Namespace: shared.ns, Path: config.Namespace,
			Pool: config.Pool, StateDir: config.StateDir}),
	}
	shared.holds = hold.NewSet(config.HoldBytes, heldRoutes{n})
	return n
}

// setUp makes everything that does not depend on peers or containers.
func (n *Network) setUp() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := foreign.CheckPool(n.config.Namespace, n.config.Pool); err != nil {
		return err
	}
	leases, err := pool.OpenLeases(filepath.Join(n.config.StateDir, "addresses.json"), n.pool)
	if err != nil {
		return err
	}
	n.leases = leases
	if err := os.MkdirAll(filepath.Join(n.config.RunDir, "netns"), 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	guarded, err := n.forwarding.findForwarding()
	if err != nil {
		return err
	}
	if err := n.tunnel.Find(); err != nil {
		return err
	}
	n.openFilter(guarded)
	if err := n.tunnel.Open(); err != nil {
		return err
	}
	n.routes.Tunnel = n.tunnel.Index()
	n.filter.KnowPeers(n.filterPeers(n.tunnel.Peers()))
	if err := errors.Join(n.containers.recoverContainers(), n.onBridges.recoverBridged()); err != nil {
		return err
	}
	if err := n.baseRoutes(); err != nil {
		return err
	}
	if err := errors.Join(n.filter.Apply(), n.suppressed.Remove()); err != nil {
		return err
	}
	if err := n.forwarding.startForwarding(); err != nil {
		return err
	}
	n.watching.Go(func() { n.bridges.Watch(n.closed, n.onBridges.bridgesChanged) })
	return n.trackLoosely()
}

// Open makes the packet filter, for the underlay that was found.
func (n *Network) openFilter(guarded bool) {
	n.filter = filter.New(filter.Config{Namespace: n.ns, Pool: n.pool, Underlay: n.config.Underlay,
		UnderlayDevice: n.tunnel.UnderlayDevice(), Encrypted: n.config.Overlay != OverlayVXLAN,
		TunnelPort: n.config.Port, OverlayPort: n.tunnel.OverlayPort(), Guarded: guarded})
}

// trackLoosely makes the node's connection tracking also translate packets that it takes for out of the
// window. What it sees of a moving container differs from what the ends see. A packet of a masqueraded
// connection that is not translated back is for the node itself, which answers it with a reset.
func (n *Network) trackLoosely() error {
	err := namespace.Within(n.ns, func() error {
		return namespace.Sysctl("netfilter/nf_conntrack_tcp_be_liberal", "1")
	})
	// a kernel without connection tracking of TCP has no windows
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("let the node follow connections that move: %w", err)
	}
	return nil
}

// baseRoutes makes the blackholes, and the rule that looks up the pool's addresses in the main table only.
func (n *Network) baseRoutes() error {
	for _, prefix := range []netip.Prefix{n.config.Pool, n.pool.Own()} {
		if err := n.routes.Blackhole(prefix); err != nil {
			return err
		}
	}
	toPool := netlink.NewRule()
	toPool.Priority, toPool.Table, toPool.Dst = rtnl.PriorityPool, unix.RT_TABLE_MAIN,
		rtnl.IPNet(n.config.Pool)
	return n.routes.AddRules(toPool, n.routes.IngressRule(n.config.NodeNumber, unix.RT_TABLE_MAIN))
}

// SuppressARP makes the node's bridges drop packets from a container: see Suppression.Suppress.
func (n *Network) SuppressARP(ip netip.Addr, mac string) error { return n.suppressed.Suppress(ip, mac) }

// AllowARP undoes SuppressARP. It is idempotent.
func (n *Network) AllowARP(ip netip.Addr) error { return n.suppressed.Allow(ip) }

// Obstacles lists the obstacles on this node.
func (n *Network) Obstacles() ([]foreign.Obstacle, error) {
	return foreign.Obstacles(n.config.Namespace, n.config.Pool)
}

// SetRoutedNetworks replaces the set of routed networks: see onBridges.SetRoutedNetworks. It is a method of
// the Network, so that who only passes it on needs no network.
func (n *Network) SetRoutedNetworks(networks []RoutedNetwork) error {
	return n.onBridges.SetRoutedNetworks(networks)
}

// MTU returns the MTU of the tunnel, and so of new containers.
func (n *Network) MTU() int { return n.tunnel.MTU() }

// KeepOverlay makes the overlay's device again if it has gone: see Tunnel.KeepOverlay.
func (n *Network) KeepOverlay() error { return n.tunnel.KeepOverlay() }

// Tunnel returns what connects this node with its peers.
func (n *Network) Tunnel() *tunnel.Tunnel { return n.tunnel }

// Lease assigns a container an address for life, or returns the one that it has: see Leases.Lease.
func (n *Network) Lease(id string) (Address, error) { return n.leases.Lease(id, n.MTU()) }

// ReleaseLease takes back the address of a container that no longer exists on any node. It is idempotent.
func (n *Network) ReleaseLease(id string) error { return n.leases.Release(id) }

// Leases lists the assigned addresses of this node, in order.
func (n *Network) Leases() []Lease { return n.leases.List() }

// NodeAddress returns this node's own address in the pool, the source of its packets to containers.
func (n *Network) NodeAddress() netip.Addr { return n.pool.NodeAddress(n.pool.Number) }

// Home returns the number of the node to which a container address belongs; it refuses other addresses.
func (n *Network) Home(ip netip.Addr) (int, error) { return n.pool.Home(ip) }

// Close releases this process's handles and leaves everything else as it is, except holds: their packets
// are lost with the process. It waits until released holds have forwarded their last packets.
func (n *Network) Close() error {
	n.mu.Lock()
	select {
	case <-n.closed: // Close has been called before
	default:
		close(n.closed)
	}
	n.mu.Unlock()
	n.holds.Close()
	n.background.Wait()
	n.watching.Wait()
	n.links.Close()
	if err := n.ns.Close(); err != nil {
		return fmt.Errorf("close the network namespace: %w", err)
	}
	return nil
}
