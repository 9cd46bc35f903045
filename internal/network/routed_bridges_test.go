package network

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestBridgeMadeAnew checks that this node answers again on a bridge that its engine removed with the last
// container and made again for the next, and that the bridge keeps its hardware address when containers
// leave.
func TestBridgeMadeAnew(t *testing.T) {
	s := newSite(t)
	a, away := s.nodes["a"], netip.MustParseAddr("10.89.1.2")
	// the bridge does not exist yet
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

// TestRoutedNetworksTriedAgain checks that the next SetRoutedNetworks retries what failed, and that a
// network that cannot be routed does not affect the others.
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

// TestWatchesOnce checks that one socket watches the bridges, even after the kernel had more to report than
// the socket takes, and watching has started again.
func TestWatchesOnce(t *testing.T) {
	s := newSite(t)
	a := s.nodes["a"]
	watching := func() (sockets []string) {
		out, err := s.run("a", "cat", "/proc/net/netlink")
		must(t, err)
		for line := range strings.Lines(out) {
			// Protocol 0 (route) and group 1 (RTNLGRP_LINK); the last field is the inode.
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
	a.mu.Lock() // so that nobody reads the kernel's reports
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
