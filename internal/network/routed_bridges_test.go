package network

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestBridgeMadeAnew: a bridge that its engine removes with the last container, and makes for the next
// one, is answered on as it was before, and keeps its hardware address when containers leave it.
func TestBridgeMadeAnew(t *testing.T) {
	s := newSite(t)
	a, away := s.nodes["a"], netip.MustParseAddr("10.89.1.2")
	// there is none yet
	must(t,
		a.SetRoutedNetworks([]RoutedNetwork{{Device: engineBridge,
			Subnet: netip.MustParsePrefix("10.89.0.0/16")}}))
	s.sendAway("one", "leaves", away.String())
	says := func(want string, args ...string) {
		t.Helper()
		eventually(t, strings.Join(args, " ")+": "+want, func() bool {
			out, err := s.run("a", args...)
			return err == nil && strings.Contains(out, want)
		})
	}
	for _, name := range []string{"first", "second"} {
		s.must("a", "ip", "link", "del", engineBridge)
		s.onBridge("a", name, "10.89.1.3/16")
		says("1", "cat", "/proc/sys/net/ipv4/conf/"+engineBridge+"/proxy_arp")
		says(away.String(), "ip", "neighbour", "show", "proxy", "dev", engineBridge)
	}
	address := func() string {
		link, err := s.nodes["a"].links.LinkByName(engineBridge)
		must(t, err)
		return link.Attrs().HardwareAddr.String()
	}
	before := address()
	s.must("a", "ip", "link", "del", "veth-second")
	s.onBridge("a", "third", "10.89.1.4/16")
	if now := address(); now != before {
		t.Errorf("its hardware address is %s, was %s", now, before)
	}
}

// TestRoutedNetworksTriedAgain: what has failed for a routed network is done when it is said again,
// and one that cannot be routed keeps none of the others from it.
func TestRoutedNetworksTriedAgain(t *testing.T) {
	s := newSite(t)
	a := s.nodes["a"]
	s.onBridge("a", "one", "10.89.1.3/16")
	overlaps := RoutedNetwork{Device: "other", Subnet: a.config.Pool}
	routed := []RoutedNetwork{overlaps, {Device: engineBridge, Subnet: netip.MustParsePrefix("10.89.0.0/16")}}
	failing(a, func() {
		if err := a.SetRoutedNetworks(routed); err == nil {
			t.Error("what cannot be done is done")
		}
	})
	if err := a.SetRoutedNetworks(routed); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), overlaps.Device) {
		t.Errorf("%v, want that %s is not routed", err, overlaps.Device)
	}
	if out, err := s.run("a", "cat", "/proc/sys/net/ipv4/conf/"+engineBridge+"/proxy_arp"); err != nil ||
		strings.TrimSpace(out) != "1" {
		t.Errorf("proxy_arp of the good one is %s", out)
	}
}

// TestWatchesOnce: bridges are watched by one socket, also when the kernel had more to tell than it
// takes, and it was made anew.
func TestWatchesOnce(t *testing.T) {
	s := newSite(t)
	a := s.nodes["a"]
	watching := func() (sockets []string) {
		out, err := s.run("a", "cat", "/proc/net/netlink")
		must(t, err)
		for line := range strings.Lines(out) {
			// Of protocol 0 (route), and group 1 (RTNLGRP_LINK); the last one is the inode.
			if f := strings.Fields(line); f[1] == "0" && f[3] == "00000001" {
				sockets = append(sockets, f[9])
			}
		}
		return sockets
	}
	before := ""
	eventually(t, "bridges are watched", func() bool {
		all := watching()
		before = strings.Join(all, " ")
		return len(all) == 1
	})
	must(t,
		a.SetRoutedNetworks([]RoutedNetwork{{Device: engineBridge,
			Subnet: netip.MustParsePrefix("10.89.0.0/16")}}))
	s.onBridge("a", "one", "10.89.1.3/16")
	a.mu.Lock() // so nobody takes what the kernel tells
	inside(t, s.ns("a"), func(h *netlink.Handle) error {
		link, err := h.LinkByName(engineBridge)
		for i := 0; i < 1000 && err == nil; i++ {
			err = h.LinkSetMTU(link, 1400+i%2)
		}
		return err
	})
	a.mu.Unlock()
	eventually(t, "bridges are watched anew, by one socket", func() bool {
		all := watching()
		return len(all) == 1 && all[0] != before
	})
}
