package docker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"

	"github.com/godwit/godwit/internal/engine"
)

// onNetwork returns a running container on networks of Docker.
func onNetwork(mode container.NetworkMode,
	ends map[string]*network.EndpointSettings) container.InspectResponse {
	return container.InspectResponse{
		ID: strings.Repeat("5f", 32), State: &container.State{Running: true, Pid: 1},
		HostConfig: &container.HostConfig{NetworkMode: mode},
		NetworkSettings: &container.NetworkSettings{Networks: ends, Ports: network.PortMap{
			network.MustParsePort("80/tcp"): {{HostIP: netip.MustParseAddr("0.0.0.0"), HostPort: "8080"},
				{HostIP: netip.MustParseAddr("::"), HostPort: "8080"}},
			network.MustParsePort("53/udp"): {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: "5353"}},
			network.MustParsePort("90/tcp"): nil,
		}},
	}
}

func TestNetworkOf(t *testing.T) {
	end := &network.EndpointSettings{IPAddress: netip.MustParseAddr("172.30.0.2"), IPPrefixLen: 24}
	own, ports := networkOf(onNetwork("birds", map[string]*network.EndpointSettings{"birds": end}))
	if own.Bridge != "birds" || own.Address != end.IPAddress || own.PrefixBits != 24 || len(ports) != 2 {
		t.Errorf("%+v, %+v", own, ports)
	}
	for what, found := range map[string]container.InspectResponse{
		"host":    onNetwork("host", map[string]*network.EndpointSettings{"host": {}}),
		"none":    onNetwork("none", nil),
		"two":     onNetwork("birds", map[string]*network.EndpointSettings{"birds": end, "fish": end}),
		"another": onNetwork("container:x", map[string]*network.EndpointSettings{"birds": end}),
	} {
		if own, ports := networkOf(found); own != (engine.Network{}) || len(ports) > 0 {
			t.Errorf("%s: %+v, %+v", what, own, ports)
		}
	}
	two := connectedObstacles(onNetwork("birds",
		map[string]*network.EndpointSettings{"birds": end, "fish": end}))
	six := connectedObstacles(onNetwork("birds", map[string]*network.EndpointSettings{"birds": {
		IPAddress: end.IPAddress, GlobalIPv6Address: netip.MustParseAddr("2001:db8::2"),
	}}))
	if len(two) != 1 || two[0].What != "networks birds, fish" || len(six) != 1 ||
		six[0].What != "address 2001:db8::2" {
		t.Errorf("%+v, %+v", two, six)
	}
}

// TestCheckNetwork checks that another node's statement about a container's address must match what Docker
// is told.
func TestCheckNetwork(t *testing.T) {
	own := engine.Network{Address: netip.MustParseAddr("172.30.0.2"), Bridge: "birds", PrefixBits: 24}
	made := func(mode container.NetworkMode, change func(*engine.Network)) error {
		d := engine.Definition{Network: own}
		change(&d.Network)
		return checkNetwork(d, extra{Host: &container.HostConfig{NetworkMode: mode}})
	}
	if err := made("birds", func(*engine.Network) {}); err != nil {
		t.Error(err)
	}
	if err := made("default", func(n *engine.Network) { n.Bridge = "bridge" }); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"host":           made("host", func(*engine.Network) {}),
		"another bridge": made("bridge", func(*engine.Network) {}),
		"not the bridge": made("birds", func(n *engine.Network) { n.Bridge = "bridge" }),
		"no address":     made("birds", func(n *engine.Network) { *n = engine.Network{} }),
		"of the pool":    made("birds", func(n *engine.Network) { n.Bridge = "" }),
		"a path":         made("birds", func(n *engine.Network) { n.Bridge = "../x" }),
		"loopback": made("birds",
			func(n *engine.Network) { n.Address = netip.MustParseAddr("127.0.0.1") }),
		"everybody": made("birds", func(n *engine.Network) { n.PrefixBits = 0 }),
		"IPv6": made("birds",
			func(n *engine.Network) { n.Address = netip.MustParseAddr("2001:db8::2") }),
	} {
		if err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

// TestAddressTaken checks that Docker assigns the lowest free address of the default bridge, and no other.
func TestAddressTaken(t *testing.T) {
	part := network.IPAMConfig{Subnet: netip.MustParsePrefix("172.17.0.0/16")}
	here := network.Inspect{Containers: map[string]network.EndpointResource{"x": {Name: "other",
		IPv4Address: netip.MustParsePrefix("172.17.0.2/16")}}}
	for _, c := range []struct{ bridge, address, why string }{
		{"bridge", "172.17.0.3", ""}, {"bridge", "172.17.0.2", "container other"},
		{"bridge", "172.17.0.4", "gives 172.17.0.3"},
		{"birds", "172.17.0.4", ""}, {"birds", "172.17.0.2", "container other"},
		{"birds", "172.17.0.1", "the bridge"},
	} {
		found := addressTaken(engine.Network{Address: netip.MustParseAddr(c.address), Bridge: c.bridge},
			here, part)
		if c.why == "" && len(found) > 0 || c.why != "" &&
			(len(found) != 1 || !strings.Contains(found[0].Why, c.why)) {
			t.Errorf("%s on %s: %+v", c.address, c.bridge, found)
		}
	}
}

// TestMakeNetwork checks that the advised commands are possible: Docker refuses to remove its default
// bridge, and to make another with that name.
func TestMakeNetwork(t *testing.T) {
	end := &endpoint{Subnet: netip.MustParsePrefix("172.30.0.0/24"),
		Gateway: netip.MustParseAddr("172.30.0.9")}
	silent := &endpoint{Subnet: netip.MustParsePrefix("172.30.0.0/24")}
	for _, one := range []struct {
		name    string
		end     *endpoint
		already bool
		want    string
	}{
		{"birds", end, false, "docker network create --subnet 172.30.0.0/24 --gateway 172.30.0.9 birds"},
		{"birds", end, true, "docker network rm birds here, and docker network create --subnet " +
			"172.30.0.0/24 --gateway 172.30.0.9 birds"},
		{"birds", nil, true, "docker network rm birds here, and make it on both nodes, with the same subnet"},
		{"bridge", end, true,
			`put "bip": "172.30.0.9/24" into /etc/docker/daemon.json on this node, and restart Docker; or`},
		{"bridge", silent, true, `put "bip": "172.30.0.1/24" into`},
		{"bridge", nil, true, `("bip" in /etc/docker/daemon.json`},
		{"bridge", end, false, `put "bip": "172.30.0.9/24" into`},
	} {
		got := makeNetwork(engine.Network{Bridge: one.name}, one.end, one.already)
		if !strings.HasPrefix(got, one.want) && !(one.end == nil && strings.Contains(got, one.want)) {
			t.Errorf("%s: %q, want %q", one.name, got, one.want)
		}
		if one.name == "bridge" && (strings.Contains(got, "network rm") ||
			strings.HasSuffix(got, " bridge")) {
			t.Errorf("%q is advised, which Docker refuses", got)
		}
	}
}
