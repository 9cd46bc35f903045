package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// Network is the containers' network on one node. Its methods may be called concurrently.
type Network struct {
	config Config
	ns     netns.NsHandle
	links  *netlink.Handle
	leases *leases
	holds  *hold.Set // has its own lock, which is taken after mu

	mu         sync.Mutex
	underlay   netlink.Link      // the interface with the node's underlay address
	overlay    *wireguard.Device // nil: packets between nodes are not encrypted
	key        wireguard.Key     // this node's private key
	public     wireguard.Key     // the public key for it
	guarded    bool              // this node did not forward packets before: see forwardChain
	tunnel     netlink.Link
	mtu        int
	peers      map[int]Peer            // by number
	containers map[string]*attachment  // by container id
	bridged    map[netip.Addr]*bridged // containers on bridges of their engines
	unfinished bool                    // places not saved, or unknown to the packet filter
	routed     []RoutedNetwork
	unrouted   bool                            // something that routed networks need has failed
	lasting    map[int]bool                    // bridges, by index, whose hardware address is fixed
	suppressed map[netip.Addr]net.HardwareAddr // hardware addresses whose packets bridges drop
	tables     map[int]*tun                    // routing tables of holds' devices
	background sync.WaitGroup
	watching   sync.WaitGroup // see watchBridges
	closed     chan struct{}  // closed when Close begins

	forbidden bool // none of allowedRules is in place: see keepAllowed

	contradicting bool      // contradictLater repeats: see contradict
	contradicted  time.Time // until when it repeats
}

// attachment is a container's connection to this node.
type attachment struct {
	address Address
	device  string // the node's end of the veth pair, or the bridge on which it is
	bridged bool   // the connection is its engine's
	plugged bool   // it may send
	blocked bool   // it receives nothing: see blockNamespace
}

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
	ns, err := openNamespace(config.Namespace)
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a netlink socket: %w", err), ns.Close())
	}
	n := &Network{
		config: config, ns: ns, links: handle,
		peers: map[int]Peer{}, containers: map[string]*attachment{}, bridged: map[netip.Addr]*bridged{},
		lasting: map[int]bool{}, suppressed: map[netip.Addr]net.HardwareAddr{}, tables: map[int]*tun{},
		closed: make(chan struct{}),
	}
	n.holds = hold.NewSet(config.HoldBytes, heldRoutes{n})
	return n, nil
}

// setUp makes everything that does not depend on peers or containers.
func (n *Network) setUp() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkPool(); err != nil {
		return err
	}
	leases, err := openLeases(filepath.Join(n.config.StateDir, "addresses.json"), n.config)
	if err != nil {
		return err
	}
	n.leases = leases
	if err := os.MkdirAll(filepath.Join(n.config.RunDir, "netns"), 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	if err := n.findForwarding(); err != nil {
		return err
	}
	if err := errors.Join(n.findUnderlay(), n.openOverlay()); err != nil {
		return err
	}
	if err := n.bringUpTunnel(); err != nil {
		return err
	}
	if err := n.recoverPeers(); err != nil {
		return err
	}
	if err := errors.Join(n.recoverContainers(), n.recoverBridged()); err != nil {
		return err
	}
	if err := n.baseRoutes(); err != nil {
		return err
	}
	if err := errors.Join(n.applyFirewall(), n.removeSuppressed()); err != nil {
		return err
	}
	if err := n.startForwarding(); err != nil {
		return err
	}
	n.watching.Go(n.watchBridges)
	return n.trackLoosely()
}

// trackLoosely makes the node's connection tracking also translate packets that it takes for out of the
// window. What it sees of a moving container differs from what the ends see. A packet of a masqueraded
// connection that is not translated back is for the node itself, which answers it with a reset.
func (n *Network) trackLoosely() error {
	err := within(n.ns, func() error { return sysctl("netfilter/nf_conntrack_tcp_be_liberal", "1") })
	// a kernel without connection tracking of TCP has no windows
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("let the node follow connections that move: %w", err)
	}
	return nil
}

// baseRoutes makes the blackholes, and the rule that looks up the pool's addresses in the main table only.
func (n *Network) baseRoutes() error {
	for _, prefix := range []netip.Prefix{n.config.Pool, n.config.subnet(n.config.NodeNumber)} {
		if err := n.addBlackhole(prefix); err != nil {
			return err
		}
	}
	toPool := netlink.NewRule()
	toPool.Priority, toPool.Table, toPool.Dst = priorityPool, unix.RT_TABLE_MAIN, ipNet(n.config.Pool)
	return n.addRules(toPool, n.ingressRule(n.config.NodeNumber, unix.RT_TABLE_MAIN))
}

// MTU returns the MTU of the tunnel, and so of new containers.
func (n *Network) MTU() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mtu
}

// NodeAddress returns this node's own address in the pool, the source of its packets to containers.
func (n *Network) NodeAddress() netip.Addr { return n.config.nodeAddress(n.config.NodeNumber) }

// Home returns the number of the node to which a container address belongs; it refuses other addresses.
func (n *Network) Home(ip netip.Addr) (int, error) { return n.config.home(ip) }

// NetnsPath returns the path at which the network namespace of an attached container is mounted.
func (n *Network) NetnsPath(id string) string { return filepath.Join(n.config.RunDir, "netns", id) }

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
