package network

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

func tuple(protocol uint8, from string, fromPort uint16, to string, toPort uint16) netlink.IPTuple {
	return netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP(from), SrcPort: fromPort, DstIP: net.ParseIP(to), DstPort: toPort}
}

// TestFlowElements: what is kept of a connection translates each packet of it as connection tracking did.
func TestFlowElements(t *testing.T) {
	ip := netip.MustParseAddr("172.30.0.2")
	tracked := []*netlink.ConntrackFlow{
		{Forward: tuple(6, "10.99.1.2", 5000, "192.0.2.10", 8080), Reverse: tuple(6, "172.30.0.2", 80, "10.99.1.2", 5000)},   // to a published port
		{Forward: tuple(17, "172.30.0.2", 4000, "192.0.2.99", 53), Reverse: tuple(17, "192.0.2.99", 53, "192.0.2.10", 4001)}, // masqueraded
		{Forward: tuple(6, "10.99.1.2", 5001, "172.30.0.2", 80), Reverse: tuple(6, "172.30.0.2", 80, "10.99.1.2", 5001)},     // as it is
		{Forward: tuple(6, "10.99.1.2", 5002, "192.0.2.10", 8080), Reverse: tuple(6, "172.30.0.3", 80, "10.99.1.2", 5002)},   // another's
		{Forward: tuple(1, "10.99.1.2", 0, "192.0.2.10", 0), Reverse: tuple(1, "172.30.0.2", 0, "10.99.1.2", 0)},             // without ports
	}
	to, from := flowElements(tracked, ip)
	maps := [2]map[string]string{{}, {}}
	for _, e := range to {
		maps[0][string(e.Key)] = string(e.Val)
	}
	for _, e := range from {
		maps[1][string(e.Key)] = string(e.Val)
	}
	if len(to) != 4 || len(from) != 2 {
		t.Fatalf("%d and %d elements", len(to), len(from))
	}
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		protocol                 uint8
		from, to, newFrom, newTo string
	}{
		{6, "10.99.1.2:5000", "192.0.2.10:8080", "10.99.1.2:5000", "172.30.0.2:80"},
		{6, "172.30.0.2:80", "10.99.1.2:5000", "192.0.2.10:8080", "10.99.1.2:5000"},
		{17, "172.30.0.2:4000", "192.0.2.99:53", "192.0.2.10:4001", "192.0.2.99:53"},
		{17, "192.0.2.99:53", "192.0.2.10:4001", "192.0.2.99:53", "172.30.0.2:4000"},
	} {
		gotTo := maps[0][string(packetKind{c.protocol, at(c.from), at(c.to)}.key())]
		if gotTo != string(endpointKey(at(c.newTo))) {
			t.Errorf("%s to %s goes to %x, want %s", c.from, c.to, gotTo, c.newTo)
		}
		gotFrom := maps[1][string(packetKind{c.protocol, at(c.from), at(c.newTo)}.key())]
		if c.from != c.newFrom && gotFrom != string(endpointKey(at(c.newFrom))) || c.from == c.newFrom && gotFrom != "" {
			t.Errorf("%s to %s comes from %x, want %s", c.from, c.to, gotFrom, c.newFrom)
		}
	}
	if match := concerns(ip); !match(to[0]) || concerns(netip.MustParseAddr("172.30.0.3"))(to[0]) {
		t.Error("elements are not found by their address")
	}
	if key := (packetKind{6, at("1.2.3.4:256"), at("5.6.7.8:1")}).key(); !bytes.Equal(key, []byte{6, 0, 0, 0, 1, 2, 3, 4, 1, 0, 0, 0, 5, 6, 7, 8, 0, 1, 0, 0}) {
		t.Errorf("key %v", key)
	}
}

func TestSegmentPart(t *testing.T) {
	segment := Segment{Subnet: netip.MustParsePrefix("10.89.0.0/16")}
	if part, err := segment.Part(3); err != nil || part.String() != "10.89.3.0/24" {
		t.Errorf("%s, %v", part, err)
	}
	for subnet, number := range map[string]int{"10.89.0.0/16": 256, "10.89.0.0/24": 1, "10.89.1.0/16": 1, "2001:db8::/16": 1} {
		if part, err := (Segment{Subnet: netip.MustParsePrefix(subnet)}).Part(number); err == nil {
			t.Errorf("part %d of %s is %s", number, subnet, part)
		}
	}
}
