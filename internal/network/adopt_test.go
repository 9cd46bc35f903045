package network

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// foreign makes a container's network on a node as another engine does: LXC's veth.mode = router.
func (s *site) foreign(node, name, address string) string {
	s.t.Helper()
	ns := makeTestNamespace(s.t, s.dir, name)
	inside(s.t, s.ns(node), func(h *netlink.Handle) error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: "veth-" + name, TxQLen: -1})
		pair.PeerName, pair.PeerNamespace = pool.InsideDevice, netlink.NsFd(ns)
		if err := h.LinkAdd(pair); err != nil {
			return err
		}
		if err := h.LinkSetUp(pair); err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{LinkIndex: pair.Attrs().Index,
			Dst: rtnl.HostNet(netip.MustParseAddr(address)), Scope: netlink.SCOPE_LINK})
	})
	inside(s.t, ns, func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(pool.InsideDevice)
		if err != nil {
			return err
		}
		own := &netlink.Addr{IPNet: rtnl.HostNet(netip.MustParseAddr(address))}
		return errors.Join(h.AddrAdd(eth0, own), h.LinkSetUp(eth0))
	})
	return s.dir + "/" + name
}

func (s *site) addressOf(name, ip string) Address {
	address := Address{IP: netip.MustParseAddr(ip), MTU: s.nodes["a"].MTU()}
	inside(s.t, s.ns(name), func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(pool.InsideDevice)
		if err == nil {
			address.MAC = eth0.Attrs().HardwareAddr.String()
		}
		return err
	})
	return address
}

func TestAdopt(t *testing.T) {
	s := newSite(t)
	a, path := s.nodes["a"], s.foreign("a", "theirs", "10.88.1.77")
	address := s.addressOf("theirs", "10.88.1.77")
	must(t, a.Adopt(t.Context(), "one", path, address))
	must(t, a.Adopt(t.Context(), "one", path, address))
	server := netip.AddrPortFrom(address.IP, 7000)
	s.echo("theirs", server)
	s.sees("client-a", server, "198.51.100.2")
	s.sees("client-b", server, "203.0.113.2")
	s.sees("c", server, "10.88.3.1")
	inside(t, s.ns("a"), func(h *netlink.Handle) error {
		_, err := h.LinkByName("veth-theirs") // the name by which its engine knows it
		return err
	})
	s.crash("a")
	n, err := New(s.config("a"))
	must(t, err)
	s.nodes["a"] = n
	s.setPeers("a")
	must(t, n.Adopt(t.Context(), "one", path, address))
	s.sees("client-b", server, "203.0.113.2")

	if leased, err := n.Lease("one"); err != nil || leased.IP != address.IP {
		t.Errorf("lease of the adopted container: %v, %v", leased, err)
	}
	must(t, n.Detach("one"))
	if _, err := os.Stat(n.NetnsPath("one")); err == nil || strings.Contains(s.state("a"), "10.88.1.77") {
		t.Errorf("after Detach:\n%s", s.state("a"))
	}
	again := s.foreign("a", "again", "10.88.1.77")
	must(t, n.Adopt(t.Context(), "one", again, s.addressOf("again", "10.88.1.77")))
	must(t, n.Detach("one"))
}

func TestAdoptRefuses(t *testing.T) {
	s := newSite(t)
	a := s.nodes["a"]
	taken := s.container("a", "own")
	path := s.foreign("a", "theirs", "10.88.1.77")
	address := s.addressOf("theirs", taken.IP.String())
	if err := a.Adopt(t.Context(), "one", path, address); !errors.Is(err, ErrAddressTaken) {
		t.Errorf("an address that another container has: %v", err)
	}
	address.IP = netip.MustParseAddr("198.51.100.9")
	if err := a.Adopt(t.Context(), "one", path, address); !errors.Is(err, ErrInvalid) {
		t.Errorf("an address that is not of the pool: %v", err)
	}
	if _, err := os.Stat(a.NetnsPath("one")); err == nil {
		t.Error("a refused adoption leaves a namespace")
	}
}
