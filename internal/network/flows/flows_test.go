package flows

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// TestFlowElements: saved elements translate each packet of a connection as connection tracking did.
func TestFlowElements(t *testing.T) {
	ip := netip.MustParseAddr("172.30.0.2")
	const established = nl.TCP_CONNTRACK_ESTABLISHED
	tracked := []*netlink.ConntrackFlow{
		// to a published port
		tcpFlow(established, tuple(6, "10.99.1.2", 5000, "192.0.2.10", 8080),
			tuple(6, "172.30.0.2", 80, "10.99.1.2", 5000)),
		// masqueraded
		tcpFlow(established, tuple(6, "172.30.0.2", 4000, "192.0.2.99", 53),
			tuple(6, "192.0.2.99", 53, "192.0.2.10", 4001)),
		// not translated
		tcpFlow(established, tuple(6, "10.99.1.2", 5001, "172.30.0.2", 80),
			tuple(6, "172.30.0.2", 80, "10.99.1.2", 5001)),
		// another container's
		tcpFlow(established, tuple(6, "10.99.1.2", 5002, "192.0.2.10", 8080),
			tuple(6, "172.30.0.3", 80, "10.99.1.2", 5002)),
		// without ports
		{Forward: tuple(1, "10.99.1.2", 0, "192.0.2.10", 0),
			Reverse: tuple(1, "172.30.0.2", 0, "10.99.1.2", 0)},
		// the container's own request
		{Forward: tuple(17, "172.30.0.2", 4000, "192.0.2.99", 53),
			Reverse: tuple(17, "192.0.2.99", 53, "192.0.2.10", 4001)},
	}
	for _, state := range []uint8{nl.TCP_CONNTRACK_SYN_SENT, nl.TCP_CONNTRACK_SYN_RECV,
		nl.TCP_CONNTRACK_TIME_WAIT, nl.TCP_CONNTRACK_CLOSE} {
		tracked = append(tracked, tcpFlow(state, tuple(6, "172.30.0.2", 4002, "192.0.2.99", 53),
			tuple(6, "192.0.2.99", 53, "192.0.2.10", 4003)))
	}
	marked := tcpFlow(established, tuple(6, "10.99.1.2", 5003, "172.30.0.2", 80),
		tuple(6, "172.30.0.2", 80, "10.99.1.2", 5003))
	marked.Mark = 7<<pool.IngressShift | 1 // the last bit is not ours
	tracked = append(tracked, marked)
	saved := ElementsOf(tracked, ip)
	for i, flow := range tracked {
		if is, want := saved.packets().MatchConntrackFlow(flow), i < 2; is != want {
			t.Errorf("flow %d is saved: %t", i, is)
		}
	}
	to, from := saved.To, saved.from
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
		{6, "172.30.0.2:4000", "192.0.2.99:53", "192.0.2.10:4001", "192.0.2.99:53"},
		{6, "192.0.2.99:53", "192.0.2.10:4001", "192.0.2.99:53", "172.30.0.2:4000"},
	} {
		gotTo := maps[0][string(packetKind{c.protocol, at(c.from), at(c.to)}.key())]
		if gotTo != string(endpointKey(at(c.newTo))) {
			t.Errorf("%s to %s goes to %x, want %s", c.from, c.to, gotTo, c.newTo)
		}
		gotFrom := maps[1][string(packetKind{c.protocol, at(c.from), at(c.newTo)}.key())]
		if c.from != c.newFrom && gotFrom != string(endpointKey(at(c.newFrom))) || c.from == c.newFrom &&
			gotFrom != "" {
			t.Errorf("%s to %s comes from %x, want %s", c.from, c.to, gotFrom, c.newFrom)
		}
	}
	if key := (packetKind{6, at("172.30.0.2:80"), at("10.99.1.2:5003")}).key(); len(saved.ingress) != 1 ||
		!bytes.Equal(saved.ingress[0].Key, key) ||
		!bytes.Equal(saved.ingress[0].Val, nft.Native(7<<pool.IngressShift)) {
		t.Errorf("ingress marks: %+v", saved.ingress)
	}
	if match := concerns(ip); !match(to[0]) || concerns(netip.MustParseAddr("172.30.0.3"))(to[0]) {
		t.Error("elements are not found by their address")
	}
	if key := (packetKind{6, at("1.2.3.4:256"), at("5.6.7.8:1")}).key(); !bytes.Equal(key,
		[]byte{6, 0, 0, 0, 1, 2, 3, 4, 1, 0, 0, 0, 5, 6, 7, 8, 0, 1, 0, 0}) {
		t.Errorf("key %v", key)
	}
}

// TestFlowsEnd checks that entries of ending connections expire soon, and that the number of saved entries
// is limited.
func TestFlowsEnd(t *testing.T) {
	ip := netip.MustParseAddr("172.30.0.2")
	in, out := tuple(6, "10.99.1.2", 5000, "192.0.2.10", 8080), tuple(6, "172.30.0.2", 80, "10.99.1.2", 5000)
	for what, c := range map[string]struct {
		flow    *netlink.ConntrackFlow
		timeout time.Duration
		ended   int
	}{
		"established": {tcpFlow(nl.TCP_CONNTRACK_ESTABLISHED, in, out), Idle, 0},
		"half-closed": {tcpFlow(nl.TCP_CONNTRACK_CLOSE_WAIT, in, out), Over, 2},
		"UDP": {&netlink.ConntrackFlow{Forward: tuple(17, "10.99.1.2", 5000, "192.0.2.10", 8080),
			Reverse: tuple(17, "172.30.0.2", 80, "10.99.1.2", 5000)}, Over, 0},
	} {
		saved := ElementsOf([]*netlink.ConntrackFlow{c.flow}, ip)
		if len(saved.To) != 2 || saved.To[0].Timeout != c.timeout || saved.To[1].Timeout != c.timeout ||
			len(saved.ended) != c.ended {
			t.Errorf("%s: %+v", what, saved)
		}
	}
	many := slices.Repeat([]*netlink.ConntrackFlow{tcpFlow(nl.TCP_CONNTRACK_ESTABLISHED, in, out)},
		2*maxFlows)
	if saved := ElementsOf(many, ip); len(saved.To) != 2*maxFlows {
		t.Errorf("%d elements are saved", len(saved.To))
	}
}
func tuple(protocol uint8, from string, fromPort uint16, to string, toPort uint16) netlink.IPTuple {
	return netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP(from), SrcPort: fromPort,
		DstIP: net.ParseIP(to), DstPort: toPort}
}

// tcpFlow is a connection in a state of connection tracking.
func tcpFlow(state uint8, forward, reverse netlink.IPTuple) *netlink.ConntrackFlow {
	return &netlink.ConntrackFlow{Forward: forward, Reverse: reverse,
		ProtoInfo: &netlink.ProtoInfoTCP{State: state}}
}
