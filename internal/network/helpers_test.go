package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// site is the topology of a test: nodes a, b and c on one underlay, 192.0.2.1 to .3, and a client attached
// to each of a and b. The client has the address 198.51.100.2 (on a) or 203.0.113.2 (on b); no other node
// has a route to it.
type site struct {
	t       *testing.T
	dir     string
	overlay Overlay
	nodes   map[string]*Network
}

// makeTestNamespace makes a network namespace with lo up that is removed when the test ends.
func makeTestNamespace(t *testing.T, dir, name string) netns.NsHandle {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := namespace.Make(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := namespace.Remove(path); err != nil {
			t.Error(err)
		}
	})
	ns, err := namespace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	inside(t, ns, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
	return ns
}

// inside runs a function with a netlink handle of a namespace.
func inside(t *testing.T, ns netns.NsHandle, run func(*netlink.Handle) error) {
	t.Helper()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := run(h); err != nil {
		t.Fatal(err)
	}
}

// failing makes requests to the packet filter fail while do runs.
func failing(n *Network, do func()) {
	set := func(ns netns.NsHandle) (was netns.NsHandle) { // locked, because bridges are being watched
		n.mu.Lock()
		defer n.mu.Unlock()
		was, n.ns = n.ns, ns
		n.filter.In(ns)
		n.suppressed.In(ns)
		return was
	}
	defer set(set(netns.None()))
	do()
}

// newSite makes the underlay (a bridge in a namespace of its own), nodes and clients.
func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOf(t, OverlayAuto)
}

// newSiteOf is newSite with an overlay.
func newSiteOf(t *testing.T, overlay Overlay) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), overlay: overlay, nodes: map[string]*Network{}}
	hub := makeTestNamespace(t, s.dir, "hub")
	inside(t, hub, func(h *netlink.Handle) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		bridge.Name = "hub"
		if err := h.LinkAdd(bridge); err != nil {
			return err
		}
		return h.LinkSetUp(bridge)
	})
	names := []string{"a", "b", "c"}
	for i, name := range names {
		s.join(makeTestNamespace(t, s.dir, name), hub, "under"+name, fmt.Sprintf("192.0.2.%d/24", i+1))
	}
	s.client("a", "client-a", "198.51.100.1/24", "198.51.100.2/24")
	s.client("b", "client-b", "203.0.113.1/24", "203.0.113.2/24")
	for _, name := range names {
		t.Cleanup(func() { // also a Network that the test has started itself
			if err := Cleanup(s.config(name)); err != nil {
				t.Error(err)
			}
		})
		s.start(name)
	}
	return s
}

// join connects a namespace to the hub.
func (s *site) join(ns, hub netns.NsHandle, port, address string) {
	inside(s.t, hub, func(h *netlink.Handle) error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: port, TxQLen: -1})
		pair.PeerName, pair.PeerNamespace = "under0", netlink.NsFd(ns)
		if err := h.LinkAdd(pair); err != nil {
			return err
		}
		bridge, err := h.LinkByName("hub")
		if err != nil {
			return err
		}
		if err := h.LinkSetMaster(pair, bridge); err != nil {
			return err
		}
		return h.LinkSetUp(pair)
	})
	configure(s.t, ns, "under0", address, "")
}

// client makes a namespace attached to a node, with its default route through the node.
func (s *site) client(node, name, nodeSide, clientSide string) {
	ns := makeTestNamespace(s.t, s.dir, name)
	inside(s.t, s.ns(node), func(h *netlink.Handle) error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: "client0", TxQLen: -1})
		pair.PeerName, pair.PeerNamespace = "node0", netlink.NsFd(ns)
		return h.LinkAdd(pair)
	})
	configure(s.t, s.ns(node), "client0", nodeSide, "")
	configure(s.t, ns, "node0", clientSide, strings.TrimSuffix(nodeSide, "/24"))
}

// configure gives a device an address, brings it up and sets the default route.
func configure(t *testing.T, ns netns.NsHandle, device, address, gateway string) {
	t.Helper()
	inside(t, ns, func(h *netlink.Handle) error {
		link, err := h.LinkByName(device)
		if err != nil {
			return err
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		prefix, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := h.AddrAdd(link, prefix); err != nil {
			return err
		}
		if gateway == "" {
			return nil
		}
		return h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
			Gw: netip.MustParseAddr(gateway).AsSlice()})
	})
}

// ns opens a namespace of the site by name, or that of a container as node/id.
func (s *site) ns(name string) netns.NsHandle {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if node, id, ok := strings.Cut(name, "/"); ok {
		path = s.nodes[node].NetnsPath(id)
	}
	ns, err := namespace.Open(path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// config returns the configuration of a node.
func (s *site) config(name string) Config {
	number := int(name[0]-'a') + 1
	return Config{NodeName: name, Pool: netip.MustParsePrefix("10.88.0.0/16"), NodeNumber: number,
		Underlay: netip.AddrFrom4([4]byte{192, 0, 2, byte(number)}),
		RunDir:   filepath.Join(s.dir, "run-"+name), StateDir: filepath.Join(s.dir, "state-"+name),
		Namespace: filepath.Join(s.dir, name), Overlay: s.overlay}
}

// start brings up a node's network and sets its peers.
func (s *site) start(name string) *Network {
	s.t.Helper()
	n, err := New(s.config(name))
	if err != nil {
		s.t.Fatal(err)
	}
	s.nodes[name] = n
	s.t.Cleanup(func() {
		if s.nodes[name] != n {
			return
		}
		if err := n.Close(); err != nil {
			s.t.Error(err)
		}
		if err := Cleanup(s.config(name)); err != nil {
			s.t.Error(err)
		}
	})
	s.setPeers(name)
	return n
}

// setPeers sets all other nodes as a node's peers.
func (s *site) setPeers(name string) {
	s.t.Helper()
	var peers []Peer
	for _, other := range []string{"a", "b", "c"} {
		if config := s.config(other); other != name {
			peers = append(peers, Peer{Name: other, Number: config.NodeNumber, Underlay: config.Underlay,
				Key: s.key(other)})
		}
	}
	must(s.t, s.nodes[name].SetPeers(peers))
}

// key returns the public key of a node, which may be started later.
func (s *site) key(name string) wireguard.Key {
	s.t.Helper()
	config := s.config(name)
	private, err := wireguard.LoadKey(filepath.Join(config.StateDir, "wireguard.key"))
	must(s.t, err)
	public, err := private.Public()
	must(s.t, err)
	return public
}

// container leases an address on a node, and attaches and plugs in a container with it.
func (s *site) container(node, id string) Address {
	s.t.Helper()
	address, err := s.nodes[node].Lease(id)
	must(s.t, err)
	s.attach(node, id, address)
	must(s.t, s.nodes[node].Route(address.IP, Local(id)))
	return address
}

// attach attaches a container to a node.
func (s *site) attach(node, id string, address Address) {
	s.t.Helper()
	if _, err := s.nodes[node].Attach(context.Background(), id, address); err != nil {
		s.t.Fatal(err)
	}
}

// Hold makes packets to the address wait, from now until Release.
func (n *Network) Hold(ip netip.Addr) (*Hold, error) {
	hold, err := n.Prepare(ip)
	if err != nil {
		return nil, err
	}
	return hold, hold.Start()
}

// dropTuns closes the devices of holds, as the kernel does when the process dies.
func (n *Network) dropTuns() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.devices.tables {
		_ = t.file.Close()
	}
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// in runs a function on a thread in a namespace of the site; sockets made in it belong there for ever.
func (s *site) in(name string, run func() error) {
	s.t.Helper()
	must(s.t, namespace.Within(s.ns(name), run))
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

// file writes a test file.
func file(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// plugRoaming attaches a client, always with the address 198.18.0.2, to a node.
func (s *site) plugRoaming(node, name string) {
	s.t.Helper()
	inside(s.t, s.ns(node), func(h *netlink.Handle) error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: "roaming0", TxQLen: -1})
		pair.PeerName, pair.PeerNamespace = "node0", netlink.NsFd(s.ns(name))
		return h.LinkAdd(pair)
	})
	configure(s.t, s.ns(node), "roaming0", "198.18.0.1/24", "")
	configure(s.t, s.ns(name), "node0", "198.18.0.2/24", "198.18.0.1")
}

// unplugRoaming takes the client away.
func (s *site) unplugRoaming(node string) {
	s.t.Helper()
	inside(s.t, s.ns(node), func(h *netlink.Handle) error {
		link, err := h.LinkByName("roaming0")
		must(s.t, err)
		return h.LinkDel(link)
	})
}

// mtu returns the MTU of a container's interface.
func (s *site) mtu(where string) (mtu int) {
	s.t.Helper()
	s.in(where, func() error {
		eth0, err := net.InterfaceByName(pool.InsideDevice)
		if err == nil {
			mtu = eth0.MTU
		}
		return err
	})
	return mtu
}
