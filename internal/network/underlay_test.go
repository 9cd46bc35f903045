package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestUnderlayIPv6 joins two nodes by IPv6 and keeps strangers out there too.
func TestUnderlayIPv6(t *testing.T) {
	s := newSite(t)
	underlay := func(name string) netip.Addr { return netip.MustParseAddr("2001:db8::" + name) }
	for _, name := range []string{"a", "b"} {
		must(t, s.nodes[name].Close())
		inside(t, s.ns(name), func(h *netlink.Handle) error {
			link, err := h.LinkByName("under0")
			must(t, err)
			address, err := netlink.ParseAddr(underlay(name).String() + "/64")
			must(t, err)
			address.Flags = unix.IFA_F_NODAD
			return h.AddrAdd(link, address)
		})
		config := s.config(name)
		config.Underlay = underlay(name)
		n, err := New(config)
		must(t, err)
		s.nodes[name] = n
		t.Cleanup(func() { _, _ = n.Close(), Cleanup(config) })
	}
	one := s.container("a", "one")
	server := netip.AddrPortFrom(one.IP, 7000)
	s.echo("a/one", server)
	must(t, s.nodes["b"].SetPeers([]Peer{{Name: "a", Number: 1, Underlay: underlay("a")}}))
	if got := s.ask("b", server, 1e8); got != "" {
		t.Errorf("a stranger was answered %q", got)
	}
	must(t, s.nodes["a"].SetPeers([]Peer{{Name: "b", Number: 2, Underlay: underlay("b")}}))
	s.sees("b", server, "10.88.2.1")
	s.sees("client-b", server, "203.0.113.2")
	if mtu := s.nodes["a"].MTU(); mtu != 1430 {
		t.Errorf("MTU is %d", mtu)
	}
}

func TestObstacles(t *testing.T) {
	s := newSite(t)
	if list, err := s.nodes["a"].Obstacles(); err != nil || len(list) != 0 {
		t.Errorf("obstacles on a node without any: %q, %v", list, err)
	}
	conn, err := s.nodes["a"].filter()
	must(t, err)
	table := conn.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	policy := nftables.ChainPolicyDrop
	conn.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter, Policy: &policy,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	must(t, conn.Flush())
	list, err := s.nodes["a"].Obstacles()
	if err != nil || len(list) != 1 || !strings.Contains(list[0], "FORWARD") {
		t.Errorf("obstacles: %q, %v", list, err)
	}
}

// TestDoorOfAClientThatMoves: a client that is known at one node and speaks by another is answered there.
func TestDoorOfAClientThatMoves(t *testing.T) {
	s := newSite(t)
	one := s.container("a", "one")
	server := netip.AddrPortFrom(one.IP, 7000)
	s.echo("a/one", server)
	for _, node := range []string{"b", "c", "a", "b"} {
		roaming := "roaming-" + node
		if !isNamespace(s.dir + "/" + roaming) {
			namespace(t, s.dir, roaming)
		}
		s.plugRoaming(node, roaming)
		if got := s.askFrom(roaming, 40000, server); got != "198.18.0.2" {
			t.Errorf("client at %s: answer %q", node, got)
		}
		s.unplugRoaming(node)
	}
}
