package oci

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestTakenPorts checks that a port in use, and a port of another node's address, are refused, and that a
// free port is not.
func TestTakenPorts(t *testing.T) {
	stream, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	local := netip.MustParseAddr("127.0.0.1")
	port := func(address net.Addr) uint16 { return netip.MustParseAddrPort(address.String()).Port() }
	published := []engine.Published{
		{Protocol: "tcp", HostPort: port(stream.Addr()), Host: local},
		{Protocol: "udp", HostPort: port(packets.LocalAddr())},
		{Protocol: "tcp", HostPort: port(stream.Addr()), Host: netip.MustParseAddr("192.0.2.1")},
	}
	nobody := func(engine.Published) string { return "" }
	for _, one := range published {
		if got := TakenPorts(t.Context(), []engine.Published{one}, nobody); len(got) != 1 ||
			!strings.Contains(got[0].What, one.Protocol) {
			t.Errorf("%+v: %v", one, got)
		}
	}
	got := TakenPorts(t.Context(), published[:1], func(engine.Published) string { return "taker" })
	if len(got) != 1 || !strings.Contains(got[0].Why, "taker") {
		t.Errorf("who has it is not said: %v", got)
	}
	_ = stream.Close()
	if got := TakenPorts(t.Context(), published[:1], nobody); len(got) > 0 {
		t.Errorf("a free one: %v", got)
	}
}

// TestPublishes checks that a port of one address matches a port of all addresses, and the other way round.
func TestPublishes(t *testing.T) {
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	tcp := func(host netip.Addr, port uint16) engine.Published {
		return engine.Published{Protocol: "tcp", Host: host, HostPort: port}
	}
	for _, c := range []struct {
		has, asked engine.Published
		want       bool
	}{
		{tcp(one, 80), tcp(one, 80), true}, {tcp(one, 80), tcp(other, 80), false},
		{tcp(one, 80), tcp(netip.Addr{}, 80), true},
		{tcp(netip.Addr{}, 80), tcp(one, 80), true}, {tcp(one, 81), tcp(one, 80), false},
	} {
		if got := Publishes(engine.Definition{Ports: []engine.Published{c.has}}, c.asked); got != c.want {
			t.Errorf("%+v, asked for %+v: %t", c.has, c.asked, got)
		}
	}
}
