package network

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// TestBridgeMadeAnew: a bridge that its engine removes with the last container, and makes for the next one, is answered on as it was before, and
// keeps its hardware address when containers leave it.
func TestBridgeMadeAnew(t *testing.T) {
	s := newSite(t)
	a, away := s.nodes["a"], netip.MustParseAddr("10.89.1.2")
	must(t, a.SetSegments([]Segment{{Device: engineBridge, Subnet: netip.MustParsePrefix("10.89.0.0/16")}})) // there is none yet
	s.visit("one", "leaves", away.String())
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

// TestSegmentsTriedAgain: what has failed for a segment is done when it is said again, and one that cannot be routed keeps none of the others
// from it.
func TestSegmentsTriedAgain(t *testing.T) {
	s := newSite(t)
	a := s.nodes["a"]
	s.onBridge("a", "one", "10.89.1.3/16")
	overlaps := Segment{Device: "other", Subnet: a.config.Pool}
	segments := []Segment{overlaps, {Device: engineBridge, Subnet: netip.MustParsePrefix("10.89.0.0/16")}}
	failing(a, func() {
		if err := a.SetSegments(segments); err == nil {
			t.Error("what cannot be done is done")
		}
	})
	if err := a.SetSegments(segments); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), overlaps.Device) {
		t.Errorf("%v, want that %s is not routed", err, overlaps.Device)
	}
	if out, err := s.run("a", "cat", "/proc/sys/net/ipv4/conf/"+engineBridge+"/proxy_arp"); err != nil || strings.TrimSpace(out) != "1" {
		t.Errorf("proxy_arp of the good one is %s", out)
	}
}
