package network

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/flows"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// engineBridge is the name of the engine's bridge on each node.
const engineBridge = "birds0"

// onBridge makes a container's network on a node as Docker does: a veth pair, one end of which is on a
// bridge.
func (s *site) onBridge(node, name, address string) (netnsPath string) {
	s.t.Helper()
	ns := makeTestNamespace(s.t, s.dir, name)
	inside(s.t, s.ns(node), func(h *netlink.Handle) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		bridge.Name = engineBridge
		if _, err := h.LinkByName(engineBridge); rtnl.IsLinkNotFound(err) {
			if err := h.LinkAdd(bridge); err != nil {
				return err
			}
		}
		link, err := h.LinkByName(engineBridge)
		if err != nil {
			return err
		}
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: "veth-" + name, TxQLen: -1,
			MasterIndex: link.Attrs().Index})
		pair.PeerName, pair.PeerNamespace = pool.InsideDevice, netlink.NsFd(ns)
		return errors.Join(h.LinkSetUp(link), h.LinkAdd(pair), h.LinkSetUp(pair))
	})
	configure(s.t, ns, pool.InsideDevice, address, "")
	return s.dir + "/" + name
}

// hostRoute returns the gateway of a node's own route for an address, and whether there is such a route.
func (s *site) hostRoute(node string, ip netip.Addr) (gateway string, there bool) {
	s.t.Helper()
	routes, err := s.nodes[node].routes.List()
	must(s.t, err)
	for _, route := range routes {
		if rtnl.IsHostRoute(ip)(route) {
			return route.Gw.String(), true
		}
	}
	return "", false
}

// record returns a node's record of an address.
func (s *site) record(node string, ip netip.Addr) bridged {
	s.t.Helper()
	one, is := s.nodes[node].records.at(ip)
	if !is {
		s.t.Fatalf("%s remembers nothing of %s", node, ip)
	}
	return one
}

// sendAway moves a container with a published port from node a to b.
func (s *site) sendAway(id, name, address string) (ip netip.Addr, ports []Published) {
	s.t.Helper()
	a, ip := s.nodes["a"], netip.MustParseAddr(address)
	ports = []Published{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}}
	must(s.t, a.AdoptBridged(s.t.Context(), s.onBridge("a", name, address+"/24"),
		Bridged{Container: id, Address: ip, Ports: ports}))
	must(s.t, a.Route(ip, Via("b")))
	must(s.t, a.SaveConntrack(ip))
	must(s.t, a.Detach(id))
	return ip, ports
}

// TestAdoptBridged checks that adopting a container on a bridge does not disturb it, that LetGo gives it
// back to its engine, and that KeepBridged follows a restarted container to its new network namespace.
func TestAdoptBridged(t *testing.T) {
	s := newSite(t)
	a, ip := s.nodes["a"], netip.MustParseAddr("172.30.0.2")
	s.guest("a", "172.30.0.1/24", "172.30.0.2/24")
	s.serve("guest", "172.30.0.2:80")
	own := Bridged{Container: "one", Address: ip}
	for range 2 {
		must(t, a.AdoptBridged(t.Context(), s.dir+"/guest", own))
		must(t, s.dial("a", "", "172.30.0.2:80"))
	}
	if one := s.record("a", ip); !one.Here || one.Via != 0 || one.Origin != 0 || one.MTU != 1500 ||
		!namespace.SameFile(a.NetnsPath("one"), s.dir+"/guest") {
		t.Errorf("%+v", one)
	}
	if gateway, there := s.hostRoute("a", ip); there {
		t.Errorf("its packets go to %q", gateway)
	}
	s.must("a", "ip", "link", "del", "veth-guest")
	anew := s.onBridge("a", "anew", "172.30.0.2/24")
	s.serve("anew", "172.30.0.2:80")
	s.must("a", "ip", "neighbour", "flush", "dev", engineBridge)
	must(t, a.KeepBridged(anew, "another", ip))
	if namespace.SameFile(a.NetnsPath("one"), anew) {
		t.Error("it is taken for another one")
	}
	must(t, a.KeepBridged(anew, "one", ip))
	if !namespace.SameFile(a.NetnsPath("one"), anew) {
		t.Error("it is looked for where it was")
	}
	for range 2 {
		must(t, a.LetGo("one"))
	}
	if _, err := os.Stat(a.NetnsPath("one")); len(a.BridgedPlaces()) != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %+v, %v", a.BridgedPlaces(), err)
	}
	must(t, s.dial("a", "", "172.30.0.2:80"))
}

// TestAdoptBridgedRefused checks that AdoptBridged refuses everything that is not a container on a bridge
// here, and leaves nothing behind.
func TestAdoptBridgedRefused(t *testing.T) {
	s := newSite(t)
	a, guest := s.nodes["a"], s.onBridge("a", "guest", "172.30.0.2/24")
	configure(t, makeTestNamespace(t, s.dir, "alone"), "lo", "172.30.0.2/24", "")
	loose := s.onBridge("a", "loose", "172.30.0.2/24")
	s.must("a", "ip", "link", "set", "veth-loose", "nomaster")
	good := Bridged{Container: "one", Address: netip.MustParseAddr("172.30.0.2")}
	for name, c := range map[string]struct {
		netns  string
		change func(*Bridged)
		want   error
	}{
		"id": {guest, func(b *Bridged) { b.Container = "../one" }, ErrInvalid},
		"IPv6": {guest, func(b *Bridged) { b.Address = netip.MustParseAddr("fd00::2") },
			ErrInvalid},
		"multicast": {guest, func(b *Bridged) { b.Address = netip.MustParseAddr("224.0.0.1") },
			ErrInvalid},
		"pool": {guest, func(b *Bridged) { b.Address = netip.MustParseAddr("10.88.1.2") },
			ErrInvalid},
		"another's": {guest, func(b *Bridged) { b.Address = netip.MustParseAddr("172.30.0.3") },
			ErrInvalid},
		"ports": {guest, func(b *Bridged) { b.Ports = make([]Published, maxPublished+1) },
			ErrInvalid},
		"port": {guest,
			func(b *Bridged) {
				b.Ports = []Published{{Protocol: "tcp",
					Host: netip.MustParseAddr("::1")}}
			},
			ErrInvalid},
		"unknown node":   {guest, func(b *Bridged) { b.From = "z" }, ErrUnknownPeer},
		"no device":      {s.dir + "/alone", func(*Bridged) {}, nil},
		"on no bridge":   {loose, func(*Bridged) {}, ErrInvalid},
		"no such netns":  {s.dir + "/none", func(*Bridged) {}, os.ErrNotExist},
		"no such device": {s.dir + "/hub", func(b *Bridged) { b.From = "b" }, nil},
	} {
		own := good
		c.change(&own)
		if err := a.AdoptBridged(t.Context(), c.netns, own); err == nil || c.want != nil &&
			!errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if places := a.BridgedPlaces(); len(places) != 0 || len(a.containers.all) != 0 {
			t.Errorf("%s: left: %+v", name, places)
		}
		if _, err := os.Stat(a.NetnsPath("one")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: its namespace is kept: %v", name, err)
		}
	}
}

// TestBridgedReturnUndone checks that a node forwards to a container as before if the container's return
// fails, at any point, and whether or not it has run there.
func TestBridgedReturnUndone(t *testing.T) {
	for _, c := range []struct {
		name          string
		arrives, runs bool
		restarted     bool
	}{
		{name: "before it arrives"},
		{name: "when it has arrived", arrives: true},
		{name: "when it has run", arrives: true, runs: true},
		{name: "after the agent was started anew", arrives: true, runs: true, restarted: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			ip, ports := s.sendAway("one", "first", "172.30.0.2")
			before := s.record("a", ip)
			path := s.onBridge("a", "again", "172.30.0.2/24")
			must(t, s.nodes["a"].ResaveConntrack("one", ip))
			if !s.record("a", ip).closing {
				t.Error("what comes in while its engine makes it would be forgotten")
			}
			if c.arrives {
				must(t, s.nodes["a"].AdoptBridged(t.Context(), path,
					Bridged{Container: "one", Address: ip, From: "b"}))
				must(t, s.nodes["a"].AdoptBridged(t.Context(), path,
					Bridged{Container: "one", Address: ip, From: "b"}))
				if s.record("a", ip).closing {
					t.Error("nobody can connect to it where it still is")
				}
			}
			if c.runs {
				must(t, s.nodes["a"].Route(ip, Local("one")))
				must(t, s.nodes["a"].Quiesce(ip))
			}
			if c.restarted {
				must(t, s.nodes["a"].Close())
				s.start("a")
			}
			a := s.nodes["a"]
			must(t, a.ResaveConntrack("one", ip))
			if !s.record("a", ip).closing {
				t.Error("new connections would come in while the container is removed")
			}
			must(t, a.GiveBack("one", ip, "b"))
			must(t, a.Detach("one"))
			must(t, errors.Join(a.GiveBack("one", ip, "b"), a.Detach("one"))) // as after a crash
			after := s.record("a", ip)
			if after.Via != before.Via || after.Origin != before.Origin || after.Here || after.closing ||
				!slices.Equal(after.Ports, ports) {
				t.Errorf("%+v, was %+v", after, before)
			}
			if gateway, _ := s.hostRoute("a", ip); gateway != a.pool.NodeAddress(2).String() {
				t.Errorf("its packets go to %q", gateway)
			}
		})
	}
}

// TestBridgedArrivalUndone checks that nothing is left of a container that has never run here.
func TestBridgedArrivalUndone(t *testing.T) {
	s := newSite(t)
	a, ip := s.nodes["a"], netip.MustParseAddr("172.30.0.2")
	must(t, a.AdoptBridged(t.Context(), s.onBridge("a", "first", "172.30.0.2/24"),
		Bridged{Container: "one", Address: ip, From: "b"}))
	must(t, a.Route(ip, Local("one")))
	must(t, errors.Join(a.ResaveConntrack("one", ip), a.GiveBack("one", ip, "b"), a.Detach("one")))
	if places := a.BridgedPlaces(); len(places) != 0 {
		t.Errorf("%+v", places)
	}
	if gateway, there := s.hostRoute("a", ip); there {
		t.Errorf("its packets go to %q", gateway)
	}
}

// TestBridgedArriving checks that a container that is still arriving does not count as here, even after a
// restart of the agent.
func TestBridgedArriving(t *testing.T) {
	s := newSite(t)
	ip, path := netip.MustParseAddr("172.30.0.2"), s.onBridge("a", "first", "172.30.0.2/24")
	must(t, s.nodes["a"].AdoptBridged(t.Context(), path, Bridged{Container: "one", Address: ip, From: "b"}))
	wants := func(when string, stable bool) {
		t.Helper()
		if places := s.nodes["a"].BridgedPlaces(); len(places) != 1 || places[0].Stable() != stable ||
			!places[0].Here {
			t.Errorf("%s: %+v", when, places)
		}
	}
	wants("it arrives", false)
	must(t, s.nodes["a"].Close())
	s.start("a")
	wants("the agent was started anew", false)
	must(t, s.nodes["a"].Route(ip, Local("one")))
	wants("it runs", true)
	must(t, s.nodes["a"].AdoptBridged(t.Context(), path, Bridged{Container: "one", Address: ip}))
	wants("it is to leave", true)
	must(t, s.nodes["a"].Route(ip, Via("c")))
	wants("it has left", false)
}

// TestBridgedAddressTaken checks that an arriving container cannot take the address of a container that has
// left. A container of this node's engine can, and then nothing of the first container remains.
func TestBridgedAddressTaken(t *testing.T) {
	s := newSite(t)
	a := s.nodes["a"]
	ip, ports := s.sendAway("one", "first", "172.30.0.2")
	flow := tcpFlow(nl.TCP_CONNTRACK_ESTABLISHED,
		tuple(6, "198.51.100.2", 5000, "192.0.2.1", 8080), tuple(6, "172.30.0.2", 80, "198.51.100.2", 5000))
	must(t, a.flows().Add(flows.ElementsOf([]*netlink.ConntrackFlow{flow}, ip)))
	path := s.onBridge("a", "second", "172.30.0.2/24")
	err := a.AdoptBridged(t.Context(), path, Bridged{Container: "two", Address: ip, From: "c"})
	if !errors.Is(err, ErrAddressTaken) || !strings.Contains(err.Error(), "container one on b") {
		t.Errorf("%v, want a refusal that names the other one", err)
	}
	must(t, errors.Join(a.ResaveConntrack("two", ip), a.GiveBack("two", ip, "c"), a.Detach("two")))
	if after := s.record("a", ip); after.Container != "one" || after.Via != 2 ||
		!slices.Equal(after.Ports, ports) {
		t.Errorf("%+v", after)
	}
	must(t, a.AdoptBridged(t.Context(), path, Bridged{Container: "two", Address: ip}))
	if after := s.record("a", ip); after.Container != "two" || after.Via != 0 || len(after.Ports) != 0 {
		t.Errorf("%+v", after)
	}
	if gateway, there := s.hostRoute("a", ip); there {
		t.Errorf("its packets go to %q", gateway)
	}
	conn, err := nft.Open(a.ns)
	must(t, err)
	if there, err := a.flows().Exist(conn); err != nil || there {
		t.Errorf("connections of the first one are kept (%v)", err)
	}
}

// TestBridgedAddressOfEnded covers a container that arrived here and was then stopped by its engine.
// Another container that gets its address may have it; if the first is started again, it has its address
// again.
func TestBridgedAddressOfEnded(t *testing.T) {
	s := newSite(t)
	b, ip := s.nodes["b"], netip.MustParseAddr("172.30.0.2")
	must(t, b.AdoptBridged(t.Context(), s.onBridge("b", "first", "172.30.0.2/24"),
		Bridged{Container: "one", Address: ip, From: "a"}))
	must(t, b.Route(ip, Local("one")))
	second := s.onBridge("b", "second", "172.30.0.2/24")
	if err := b.AdoptBridged(t.Context(), second,
		Bridged{Container: "two", Address: ip, From: "c"}); !errors.Is(err, ErrAddressTaken) {
		t.Errorf("%v, while the first one runs", err)
	}
	s.must("b", "ip", "link", "del", "veth-first")
	anew := s.onBridge("b", "anew", "172.30.0.2/24")
	must(t, b.KeepBridged(anew, "one", ip))
	if at := s.record("b", ip); at.Container != "one" || at.Origin != 1 || !at.Here ||
		!namespace.SameFile(b.NetnsPath("one"), anew) {
		t.Errorf("started again: %+v", at)
	}
	s.must("b", "ip", "link", "del", "veth-anew")
	must(t, b.AdoptBridged(t.Context(), second, Bridged{Container: "two", Address: ip, From: "c"}))
	if at := s.record("b", ip); at.Container != "two" || at.Origin != 3 {
		t.Errorf("the other one: %+v", at)
	}
	if _, err := os.Stat(b.NetnsPath("one")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the first one's network is left: %v", err)
	}
	must(t, b.Detach("one"))
	if at := s.record("b", ip); at.Container != "two" || !at.Here {
		t.Errorf("when the first one is removed: %+v", at)
	}
}

// TestBridgedSavedLater checks that the place of a moved container is saved later if saving fails at first.
func TestBridgedSavedLater(t *testing.T) {
	s := newSite(t)
	a := s.nodes["a"]
	ip, _ := s.sendAway("one", "first", "172.30.0.2")
	a.background.Wait()
	path := a.records.path
	must(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
	must(t, a.Route(ip, Via("c")))
	a.background.Wait()
	if err := a.KeepPassing(); err == nil {
		t.Error("it is written into a directory")
	}
	must(t, errors.Join(os.Remove(path), a.KeepPassing()))
	if all, err := a.records.read(); err != nil || len(all) != 1 || all[0].Via != 3 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestBridgedFileBroken checks that an unreadable record does not affect the other records, nor the rest of
// the node.
func TestBridgedFileBroken(t *testing.T) {
	good := `{"container":"one","address":"172.30.0.2","via":2,"ports":[{"protocol":"tcp","host_port":8080,"container_port":80}]}`
	for name, c := range map[string]struct {
		content     string
		kept, aside bool
	}{
		"empty":        {"", false, true},
		"torn":         {"[" + good[:40], false, true},
		"large":        {"[" + strings.Repeat(" ", bridgedFileLimit) + good + "]", false, true},
		"another kind": {"[7," + good + "]", true, false},
		"nothing":      {"[null," + good + "]", true, false},
		"no address":   {`[{"container":"two","address":"10.88.1.7","via":2},` + good + "]", true, false},
		"no port":      {`[{"container":"two","address":"172.30.0.3","via":2,"ports":[{"protocol":"icmp"}]},` + good + "]", true, false},
		"no node":      {`[{"container":"two","address":"172.30.0.3","via":4096},` + good + "]", true, false},
		"twice":        {"[" + good + "," + strings.Replace(good, "one", "two", 1) + "]", true, false},
		"whole":        {"[" + good + "]", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{t: t, dir: t.TempDir(), nodes: map[string]*Network{}}
			makeTestNamespace(t, s.dir, "a")
			n, err := open(s.config("a"))
			must(t, err)
			file(t, n.records.path, c.content)
			must(t, n.recoverBridged())
			kept, is := n.records.at(netip.MustParseAddr("172.30.0.2"))
			if is != c.kept || c.kept &&
				(kept.Container != "one" || kept.Via != 2 || len(kept.Ports) != 1) || n.records.count() > 1 {
				t.Errorf("kept: %+v", n.records.list())
			}
			if _, err := os.Stat(n.records.path + ".unreadable"); (err == nil) != c.aside {
				t.Errorf("moved aside: %v", err)
			}
			must(t, errors.Join(n.records.save(), n.Close()))
		})
	}
}

// TestBridgedFileLimit checks that AdoptBridged refuses a record that would make the file too large to
// read.
func TestBridgedFileLimit(t *testing.T) {
	s := newSite(t)
	a, ip := s.nodes["a"], netip.MustParseAddr("172.30.0.2")
	ports := slices.Repeat([]Published{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}},
		maxPublished)
	path := s.onBridge("a", "first", "172.30.0.2/24")
	for at := netip.MustParseAddr("172.31.0.1"); a.records.count() < 100; at = at.Next() { // some 50 KB each
		a.records.put(bridged{Container: "other", Address: at, Via: 2, Ports: ports})
	}
	if err := a.AdoptBridged(t.Context(), path,
		Bridged{Container: "one", Address: ip, Ports: ports}); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v, want a refusal", err)
	}
	if a.IsBridged("one", ip) || a.containers.all["one"] != nil {
		t.Error("it is remembered")
	}
	must(t, a.Detach("one"))
}

// migrate moves a container between the bridges of two nodes. Before and after are the names of its network
// namespaces there.
func (s *site) migrate(id, address, from, before, to, after string) {
	s.t.Helper()
	ip := netip.MustParsePrefix(address).Addr()
	source, target := s.nodes[from], s.nodes[to]
	must(s.t, source.AdoptBridged(s.t.Context(), filepath.Join(s.dir, before),
		Bridged{Container: id, Address: ip}))
	must(s.t, target.AdoptBridged(s.t.Context(), s.onBridge(to, after, address),
		Bridged{Container: id, Address: ip, From: from}))
	must(s.t, errors.Join(target.Route(ip, Local(id)), source.Route(ip, Via(to)), source.SaveConntrack(ip)))
	s.must(from, "ip", "link", "del", "veth-"+before)
	must(s.t, source.Detach(id))
}

// TestBridgedArrivalUndoneOnRoutedNetwork checks that neighbours still reach a container where it runs
// after its arrival here was announced and then undone.
func TestBridgedArrivalUndoneOnRoutedNetwork(t *testing.T) {
	s := newSite(t)
	a, b, ip := s.nodes["a"], s.nodes["b"], netip.MustParseAddr("10.89.1.2")
	s.onBridge("a", "server", "10.89.1.2/16")
	s.onBridge("b", "asker", "10.89.2.2/16")
	for node, gateway := range map[string]string{"a": "10.89.1.1/16", "b": "10.89.2.1/16"} {
		s.must(node, "ip", "address", "add", gateway, "dev", engineBridge)
		must(t, s.nodes[node].SetRoutedNetworks(
			[]RoutedNetwork{{Device: engineBridge, Subnet: netip.MustParsePrefix("10.89.0.0/16")}}))
	}
	say := s.converse("asker", "server", "10.89.1.2:80")
	must(t, say())
	must(t, a.AdoptBridged(t.Context(), filepath.Join(s.dir, "server"),
		Bridged{Container: "one", Address: ip}))
	must(t, b.AdoptBridged(t.Context(), s.onBridge("b", "comes", "10.89.1.2/16"),
		Bridged{Container: "one", Address: ip, From: "a"}))
	must(t, b.Route(ip, Local("one")))
	must(t, b.Quiesce(ip)) // it has not run here
	s.must("b", "ip", "link", "del", "veth-comes")
	must(t, errors.Join(b.ResaveConntrack("one", ip), b.GiveBack("one", ip, "a"), b.Detach("one")))
	must(t, say())
}

// TestBridgedArrivingContradicted checks that neighbours keep sending through this node although an engine
// announces a container that is only arriving. A failure to correct the announcement for another container
// does not affect this one.
func TestBridgedArrivingContradicted(t *testing.T) {
	s := newSite(t)
	b, ip, broken := s.nodes["b"], netip.MustParseAddr("10.89.1.2"), netip.MustParseAddr("10.89.1.3")
	s.onBridge("b", "asker", "10.89.2.2/16")
	s.must("b", "ip", "address", "add", "10.89.2.1/16", "dev", engineBridge)
	must(t,
		b.SetRoutedNetworks([]RoutedNetwork{{Device: engineBridge,
			Subnet: netip.MustParsePrefix("10.89.0.0/16")}}))
	s.must("b", "ip", "link", "add", "down", "type", "veth", "peer", "name", "down-peer")
	b.records.put(bridged{Container: "broken", Address: broken, Arriving: true})
	b.mu.Lock()
	b.containers.all["broken"] = &attachment{device: "down", bridged: true}
	b.mu.Unlock()
	must(t, b.AdoptBridged(t.Context(), s.onBridge("b", "comes", "10.89.1.2/16"),
		Bridged{Container: "one", Address: ip, From: "a"}))
	const lie = "02:00:00:00:00:99"
	s.must("asker", "ip", "neigh", "replace", ip.String(), "lladdr", lie, "dev", "eth0", "nud", "stale")
	eventually(t, "the neighbour is told where it is", func() bool {
		out, err := s.run("asker", "ip", "neigh", "show", ip.String())
		return err == nil && !strings.Contains(string(out), lie)
	})
}

// TestBridgedBothMoved checks that two containers of a routed network can talk to each other after both
// have moved, and to a container of the pool, whatever conntrack entries the nodes have.
func TestBridgedBothMoved(t *testing.T) {
	s := newSite(t)
	const server, asker = "10.89.1.2/16", "10.89.1.3/16"
	s.onBridge("a", "server1", server)
	s.onBridge("a", "asker1", asker)
	s.onBridge("b", "other", "10.89.2.9/16")
	for node, gateway := range map[string]string{"a": "10.89.1.1/16", "b": "10.89.2.1/16"} {
		s.must(node, "ip", "address", "add", gateway, "dev", engineBridge)
		must(t, s.nodes[node].SetRoutedNetworks(
			[]RoutedNetwork{{Device: engineBridge, Subnet: netip.MustParsePrefix("10.89.0.0/16")}}))
	}
	s.migrate("server", server, "a", "server1", "b", "server2")
	s.migrate("asker", asker, "a", "asker1", "b", "asker2")
	s.migrate("server", server, "b", "server2", "a", "server3")
	pooled := s.container("a", "pooled")
	roaming, err := s.nodes["a"].Lease("roaming")
	must(t, err)
	s.attach("b", "roaming", roaming)
	must(t, errors.Join(s.nodes["a"].Route(roaming.IP, Via("b")),
		s.nodes["b"].Route(roaming.IP, Local("roaming"))))
	s.must("other", "ip", "route", "add", "default", "via", "10.89.2.1")
	s.must("server3", "ip", "route", "add", "default", "via", "10.89.1.1")
	s.must("asker2", "ip", "route", "add", "default", "via", "10.89.2.1")
	for _, c := range []struct{ from, to, at string }{
		{"asker2", "server3", "10.89.1.2:80"}, {"server3", "asker2", "10.89.1.3:80"},
		{"other", "server3", "10.89.1.2:81"},
		{"a/pooled", "asker2", "10.89.1.3:81"}, {"asker2", "a/pooled", pooled.IP.String() + ":80"},
		{"b/roaming", "asker2", "10.89.1.3:82"}, {"asker2", "b/roaming", roaming.IP.String() + ":80"},
		{"server3", "b/roaming", roaming.IP.String() + ":81"},
		{"other", "b/roaming", roaming.IP.String() + ":82"},
	} {
		said := s.converse(c.from, c.to, c.at)
		must(t, said())
		for _, node := range []string{"a", "b"} {
			s.forgetTracked(node)
		}
		if err := said(); err != nil {
			t.Errorf("%s to %s, met in its middle: %v", c.from, c.to, err)
		}
	}
}

// forgetTracked deletes all conntrack entries of a node.
func (s *site) forgetTracked(node string) {
	s.t.Helper()
	handle, err := netlink.NewHandleAt(s.ns(node), unix.NETLINK_NETFILTER)
	must(s.t, err)
	defer handle.Close()
	must(s.t, handle.ConntrackTableFlush(netlink.ConntrackTable))
}

// converse opens a connection, and returns a function that sends a word on it and waits for the answer.
func (s *site) converse(from, to, at string) (say func() error) {
	s.t.Helper()
	var listener net.Listener
	s.in(to, func() (err error) {
		listener, err = net.Listen("tcp4", at)
		return err
	})
	s.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	var conn net.Conn
	s.in(from, func() (err error) {
		conn, err = net.DialTimeout("tcp4", at, 10*time.Second)
		return err
	})
	s.t.Cleanup(func() { _ = conn.Close() })
	return func() error {
		word := []byte("word")
		must(s.t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		if _, err := conn.Write(word); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, word)
		return err
	}
}
