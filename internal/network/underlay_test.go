package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/nft"
)

// TestUnderlayIPv6 connects two nodes over IPv6 and checks that strangers stay out there too.
func TestUnderlayIPv6(t *testing.T) {
	s := newSite(t)
	underlay := func(name string) netip.Addr { return netip.MustParseAddr("2001:db8::" + name) }
	for _, name := range []string{"a", "b"} {
		must(t, errors.Join(s.nodes[name].Close(), Cleanup(s.config(name))))
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
	must(t, s.nodes["b"].SetPeers([]Peer{{Name: "a", Number: 1, Underlay: underlay("a"), Key: s.key("a")}}))
	if got := s.ask("b", server, 1e8); got != "" {
		t.Errorf("a stranger was answered %q", got)
	}
	must(t, s.nodes["a"].SetPeers([]Peer{{Name: "b", Number: 2, Underlay: underlay("b"), Key: s.key("b")}}))
	s.sees("b", server, "10.88.2.1")
	s.sees("client-b", server, "203.0.113.2")
	if mtu := s.nodes["a"].MTU(); mtu != 1500-50-80 { // VXLAN in IPv4 in WireGuard in IPv6
		t.Errorf("MTU is %d", mtu)
	}
}

// TestPeerWithAnotherAddress checks that peers find a node again after its underlay address has changed,
// even if its overlay device kept running meanwhile.
func TestPeerWithAnotherAddress(t *testing.T) {
	s := newSite(t)
	one := s.container("a", "one")
	server := netip.AddrPortFrom(one.IP, 7000)
	s.echo("a/one", server)
	s.sees("b", server, "10.88.2.1")
	inside(t, s.ns("b"), func(h *netlink.Handle) error {
		link, err := h.LinkByName("under0")
		must(t, err)
		old, err := netlink.ParseAddr("192.0.2.2/24")
		must(t, err)
		return h.AddrDel(link, old)
	})
	configure(t, s.ns("b"), "under0", "192.0.2.22/24", "")
	must(t, s.nodes["b"].Close())
	config := s.config("b")
	config.Underlay = netip.MustParseAddr("192.0.2.22")
	b, err := New(config)
	must(t, err)
	s.nodes["b"] = b
	t.Cleanup(func() { _ = b.Close() })
	s.setPeers("b")
	must(t, s.nodes["a"].SetPeers([]Peer{{Name: "b", Number: 2, Underlay: config.Underlay, Key: s.key("b")}}))
	// Packets encrypted with the previous key are lost until both nodes have agreed on a new key.
	eventually(t, "an answer", func() bool { return s.ask("b", server, 100*time.Millisecond) == "10.88.2.1" })
}

func TestObstacles(t *testing.T) {
	s := newSite(t)
	if list, err := s.nodes["a"].Obstacles(); err != nil || len(list) != 0 {
		t.Errorf("obstacles on a node without any: %q, %v", list, err)
	}
	conn, err := nft.Open(s.nodes["a"].ns)
	must(t, err)
	table := conn.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	policy := nftables.ChainPolicyDrop
	forward := conn.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter,
		Policy: &policy, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	must(t, conn.Flush())
	list, err := s.nodes["a"].Obstacles()
	if err != nil || len(list) != 1 ||
		list[0].Remedy != "iptables -I FORWARD -s 10.88.0.0/16 -j ACCEPT && iptables -I FORWARD -d "+
			"10.88.0.0/16 -j ACCEPT" {
		t.Errorf("obstacles: %q, %v", list, err)
	}
	users := conn.AddChain(&nftables.Chain{Name: "DOCKER-USER", Table: table})
	must(t, conn.Flush())
	list, err = s.nodes["a"].Obstacles()
	if err != nil || len(list) != 1 ||
		!strings.HasPrefix(list[0].Remedy, "iptables -I DOCKER-USER -s 10.88.0.0/16 -j ACCEPT && ") {
		t.Errorf("obstacles with Docker: %q, %v", list, err)
	}
	// First half of the required rules, then other programs' rules, then all required rules: in the form
	// that iptables writes, and in the form that nft writes.
	pool := s.nodes["a"].config.Pool
	from := nft.Rule{
		&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
			Offset: nft.OffsetSource,
			Len:    2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{10, 88}}, &expr.Counter{},
	}
	conn.AddRule(&nftables.Rule{Table: table, Chain: users,
		Exprs: append(slices.Clone(from), nft.Accept()...)})
	conn.AddRule(&nftables.Rule{Table: table, Chain: users,
		Exprs: slices.Concat(nft.InPrefix(nft.OffsetDestination, pool, true), nft.Drop())})
	conn.AddRule(&nftables.Rule{Table: table, Chain: users,
		Exprs: slices.Concat(nft.FromGroup(1), nft.InPrefix(nft.OffsetDestination, pool, true),
			nft.Accept())})
	must(t, conn.Flush())
	if list, err := s.nodes["a"].Obstacles(); err != nil || len(list) != 1 {
		t.Errorf("obstacles after half of the commands: %q, %v", list, err)
	}
	conn.AddRule(&nftables.Rule{Table: table, Chain: forward,
		Exprs: slices.Concat(nft.InPrefix(nft.OffsetDestination, pool, true), nft.Accept())})
	must(t, conn.Flush())
	if list, err := s.nodes["a"].Obstacles(); err != nil || len(list) != 0 {
		t.Errorf("obstacles after the commands: %q, %v", list, err)
	}
}

// TestIngressOfAMovingClient checks that answers go to the node through which a client sends now, not to
// the node through which it sent before.
func TestIngressOfAMovingClient(t *testing.T) {
	s := newSite(t)
	one := s.container("a", "one")
	server := netip.AddrPortFrom(one.IP, 7000)
	s.echo("a/one", server)
	for _, node := range []string{"b", "c", "a", "b"} {
		roaming := "roaming-" + node
		if !namespace.Is(s.dir + "/" + roaming) {
			makeTestNamespace(t, s.dir, roaming)
		}
		s.plugRoaming(node, roaming)
		if got := s.askFrom(roaming, 40000, server); got != "198.18.0.2" {
			t.Errorf("client at %s: answer %q", node, got)
		}
		s.unplugRoaming(node)
	}
}
