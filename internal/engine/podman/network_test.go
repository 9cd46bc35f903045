package podman

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// onBridge puts a container on a network of Podman.
func onBridge(d *engine.Definition, x *extra) {
	d.Network = engine.Network{Address: netip.MustParseAddr("172.31.0.7"), MAC: "d2:af:a1:2c:9a:0b",
		Bridge: "birds", PrefixBits: 24}
	d.Ports = []engine.Published{
		{Protocol: "udp", Host: netip.MustParseAddr("127.0.0.1"), HostPort: 53, ContainerPort: 53},
		{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
	}
	x.Host.NetworkMode = bridged
	x.Host.PortBindings = map[string][]binding{"80/tcp": {{HostPort: "8080"}},
		"53/udp": {{HostIP: "127.0.0.1", HostPort: "53"}}}
	x.Endpoint = &endpoint{Aliases: []string{"wader"}, Subnet: netip.MustParsePrefix("172.31.0.0/24")}
}

// TestDecodeNetwork checks that a network from another node is accepted only if Podman makes the container
// with it.
func TestDecodeNetwork(t *testing.T) {
	if _, err := decode(valid(t, onBridge)); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*engine.Definition, *extra){
		"address": func(d *engine.Definition,
			_ *extra) {
			d.Network.Address = netip.MustParseAddr("127.0.0.1")
		},
		"IPv6": func(d *engine.Definition,
			_ *extra) {
			d.Network.Address = netip.MustParseAddr("fd00::1")
		},
		"no address": func(d *engine.Definition, _ *extra) { d.Network = engine.Network{} },
		"network":    func(d *engine.Definition, _ *extra) { d.Network.Bridge = "birds:ip=10.0.0.1" },
		"hardware": func(d *engine.Definition,
			_ *extra) {
			d.Network.MAC = "d2:af:a1:2c:9a:0b,alias=x"
		},
		"all hardware": func(d *engine.Definition, _ *extra) { d.Network.MAC = "ff:ff:ff:ff:ff:ff" },
		"prefix":       func(d *engine.Definition, _ *extra) { d.Network.PrefixBits = 31 },
		"mode":         func(_ *engine.Definition, x *extra) { x.Host.NetworkMode = "host" },
		"alias": func(_ *engine.Definition,
			x *extra) {
			x.Endpoint.Aliases = []string{"x,ip=10.0.0.1"}
		},
		"many aliases": func(_ *engine.Definition,
			x *extra) {
			x.Endpoint.Aliases = make([]string, maxAliases+1)
		},
		"other ports": func(d *engine.Definition, _ *extra) { d.Ports = d.Ports[:1] },
		"protocol": func(_ *engine.Definition,
			x *extra) {
			x.Host.PortBindings["80/sctp"] = []binding{{HostPort: "80"}}
		},
		"port's address": func(_ *engine.Definition,
			x *extra) {
			x.Host.PortBindings["80/tcp"][0].HostIP = "::"
		},
		"port": func(_ *engine.Definition,
			x *extra) {
			x.Host.PortBindings["80/tcp"][0].HostPort = "8080-8090"
		},
		"many ports": func(d *engine.Definition, _ *extra) { d.Ports = make([]engine.Published, 2000) },
		"container's way": func(_ *engine.Definition,
			x *extra) {
			x.Host.NetworkMode = "container:" + testID
		},
	} {
		change := func(d *engine.Definition, x *extra) { onBridge(d, x); change(d, x) }
		if _, err := decode(valid(t, change)); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

// TestCreateOnBridge checks that Podman is told the container's previous addresses and ports, and none if
// it had none.
func TestCreateOnBridge(t *testing.T) {
	d := valid(t, onBridge)
	x, err := decode(d)
	if err != nil {
		t.Fatal(err)
	}
	args, err := createArgs(d, x, testID)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--network=birds:ip=172.31.0.7,mac=d2:af:a1:2c:9a:0b,alias=wader", "--publish=8080:80/tcp",
		"--publish=127.0.0.1:53:53/udp",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is not told: %q", want, args)
		}
	}
}

// TestNetworkObstacles checks that the refusal names what does not move.
func TestNetworkObstacles(t *testing.T) {
	said := func(all []engine.Problem) (words string) {
		for _, one := range all {
			words += one.What + ": " + one.Why + "\n"
		}
		return words
	}
	for mode, word := range map[string]string{"none": "", "host": "", bridged: "", "container:" +
		testID: "move with it", "slirp4netns": "slirp4netns", "pasta": "pasta", "ns:/x": "ns:/x"} {
		got := said(networkObstacles(host{NetworkMode: mode}))
		if (got == "") != (word == "") || !strings.Contains(got, word) {
			t.Errorf("%s: %q", mode, got)
		}
	}
	for word, n := range map[string]podmanNetwork{
		"": {Driver: "bridge"}, "macvlan": {Driver: "macvlan"},
		"dhcp":         {Driver: "bridge", IPAM: map[string]string{"driver": "dhcp"}},
		"not Podman's": {Driver: "bridge", Options: map[string]string{"mode": "unmanaged"}},
	} {
		got := said(n.obstacles("birds"))
		if (got == "") != (word == "") || !strings.Contains(got, word) {
			t.Errorf("%+v: %q", n, got)
		}
	}
	two := inspected{Host: host{NetworkMode: bridged}}
	two.NetworkSettings.Networks = map[string]connection{"a": {}, "b": {}}
	if got := said(connectedObstacles(t.Context(), two)); !strings.Contains(got, "networks a, b") {
		t.Errorf("two networks: %q", got)
	}
}

// TestAddressTaken checks that the refusal names the bridge or container that has the address.
func TestAddressTaken(t *testing.T) {
	own := engine.Network{Address: netip.MustParseAddr("172.31.0.7"), Bridge: "birds"}
	other := func(network engine.Network) []oci.Container {
		return []oci.Container{{Container: engine.Container{Definition: engine.Definition{Name: "taker",
			Network: network}}}}
	}
	gateway := netip.MustParseAddr("172.31.0.1")
	elsewhere := own
	elsewhere.Bridge = "fish"
	if got := append(addressTaken(own, gateway, other(elsewhere)),
		addressTaken(own, gateway, nil)...); len(got) > 0 {
		t.Errorf("a free address: %v", got)
	}
	for who, got := range map[string][]engine.Problem{"taker": addressTaken(own, gateway, other(own)),
		"bridge": addressTaken(own, own.Address, nil)} {
		if len(got) != 1 || !strings.Contains(got[0].Why, who) {
			t.Errorf("%s: %v", who, got)
		}
	}
}
