package network

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

func testConfig(t *testing.T) Config {
	t.Helper()
	config, err := Config{NodeName: "a", NodeNumber: 1, Pool: netip.MustParsePrefix("10.88.0.0/16"),
		Underlay: netip.MustParseAddr("192.0.2.1"), RunDir: t.TempDir(), StateDir: t.TempDir()}.withDefaults()
	must(t, err)
	return config
}

func TestConfigRefuses(t *testing.T) {
	good := testConfig(t)
	for what, spoil := range map[string]func(*Config){
		"no name":          func(c *Config) { c.NodeName = "" },
		"no number":        func(c *Config) { c.NodeNumber = 0 },
		"number too high":  func(c *Config) { c.NodeNumber = 256 },
		"pool of IPv6":     func(c *Config) { c.Pool = netip.MustParsePrefix("fd00::/16") },
		"pool too small":   func(c *Config) { c.Pool = netip.MustParsePrefix("10.88.0.0/24") },
		"pool with host":   func(c *Config) { c.Pool = netip.MustParsePrefix("10.88.0.1/16") },
		"no underlay":      func(c *Config) { c.Underlay = netip.Addr{} },
		"underlay in pool": func(c *Config) { c.Underlay = netip.MustParseAddr("10.88.1.9") },
		"underlay anybody": func(c *Config) { c.Underlay = netip.IPv4Unspecified() },
		"port":             func(c *Config) { c.Port = 65536 },
		"small MTU":        func(c *Config) { c.MTU = 100 },
		"relative path":    func(c *Config) { c.RunDir = "run" },
		"negative hold":    func(c *Config) { c.HoldBytes = -1 },
		"multicast":        func(c *Config) { c.Underlay = netip.MustParseAddr("224.0.0.1") },
		"negative number":  func(c *Config) { c.NodeNumber = -1 },
		"mark has no space": func(c *Config) {
			c.Pool, c.NodeNumber = netip.MustParsePrefix("10.0.0.0/8"), 4096
		},
	} {
		config := good
		spoil(&config)
		if _, err := config.withDefaults(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestHostileInputChangesNothing(t *testing.T) {
	s := newSite(t)
	n := s.nodes["a"]
	one := s.container("a", "one")
	before := s.state("a")
	for _, text := range []string{"8.8.8.8", "10.88.1.1", "10.88.1.255", "127.0.0.1", "fe80::1",
		"192.0.2.1"} {
		ip := netip.MustParseAddr(text)
		_, errHold := n.Hold(ip)
		_, errAttach := n.Attach(context.Background(), "bad", Address{IP: ip, MAC: one.MAC, MTU: 1450})
		for what, err := range map[string]error{"route": n.Route(ip, Via("b")),
			"local":   n.Route(ip, Local("one")),
			"unroute": n.Unroute(ip), "hold": errHold, "attach": errAttach} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s of %s: %v", what, text, err)
			}
		}
	}
	other := netip.MustParseAddr("10.88.1.77")
	for what, err := range map[string]error{
		"unknown peer": n.Route(other, Via("nobody")), "own name": n.Route(other, Via("a")),
		"no name": n.Route(other, Destination{}),
	} {
		if !errors.Is(err, ErrUnknownPeer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, id := range []string{"one", "nobody"} {
		if err := n.Route(other, Local(id)); !errors.Is(err, ErrNotAttached) {
			t.Errorf("route to %s, which has not the address: %v", id, err)
		}
	}
	for id, address := range map[string]Address{
		"../x": {IP: other, MAC: one.MAC, MTU: 1450}, "": {IP: other, MAC: one.MAC, MTU: 1450},
		"a b": {IP: other, MAC: one.MAC, MTU: 1450},
		"mac": {IP: other, MAC: "01:00:00:00:00:01", MTU: 1450}, "nomac": {IP: other, MTU: 1450},
		"mtu": {IP: other, MAC: one.MAC, MTU: 1 << 30}, "negative": {IP: other, MAC: one.MAC, MTU: -1},
		"one": {IP: other, MAC: one.MAC, MTU: 1450},
	} {
		if _, err := n.Attach(context.Background(), id, address); !errors.Is(err, ErrInvalid) {
			t.Errorf("attach %q with %+v: %v", id, address, err)
		}
	}
	if _, err := n.Attach(context.Background(), "thief", one); !errors.Is(err, ErrAddressTaken) {
		t.Errorf("attach with another's address: %v", err)
	}
	if err := n.Detach("../../etc"); !errors.Is(err, ErrInvalid) {
		t.Errorf("detach of a path: %v", err)
	}
	b, c := s.config("b").Underlay, s.config("c").Underlay
	for _, peers := range [][]Peer{
		{{Name: "b", Number: 1, Underlay: b}}, {{Name: "a", Number: 2, Underlay: b}},
		{{Name: "b", Number: 0, Underlay: b}},
		{{Name: "b", Number: 2, Underlay: b}, {Name: "c", Number: 2, Underlay: c}}, {{Name: "b", Number: 2}},
		{{Name: "b", Number: 2, Underlay: b}, {Name: "b", Number: 3, Underlay: c}},
		{{Name: "b", Number: 300, Underlay: b}},
		{{Name: "b", Number: 2, Underlay: b}, {Name: "c", Number: 3, Underlay: b}},
		{{Name: "b", Number: 2, Underlay: s.config("a").Underlay}},
		{{Name: "b", Number: 2, Underlay: netip.MustParseAddr("2001:db8::1")}}, {{Number: 2, Underlay: b}},
	} {
		if err := n.SetPeers(peers); !errors.Is(err, ErrInvalid) {
			t.Errorf("peers %+v: %v", peers, err)
		}
	}
	if after := s.state("a"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func FuzzAlias(f *testing.F) {
	f.Add("godwit one 10.88.1.2 0e:67:0a:58:01:02 1450")
	f.Add("godwit ../x 8.8.8.8 x -1")
	config, err := Config{NodeName: "a", NodeNumber: 1, Pool: netip.MustParsePrefix("10.88.0.0/16"),
		Underlay: netip.MustParseAddr("192.0.2.1"), RunDir: "/r", StateDir: "/s"}.withDefaults()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, alias string) {
		id, address, ok := parseAlias(config.pool(), alias)
		if !ok {
			return
		}
		if again, same, ok := parseAlias(config.pool(), aliasOf(id, address)); !ok || again != id ||
			same != address {
			t.Errorf("%q gave %q and %+v, and these %q and %+v", alias, id, address, again, same)
		}
	})
}
