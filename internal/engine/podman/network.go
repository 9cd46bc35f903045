package podman

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Podman makes a container's network namespace, and has netavark set it up, before it calls the runtime. At
// the target it does so for an arriving container, with the container's previous address.

// bridged is the mode of a container that is on any networks of Podman.
const bridged = "bridge"

// maxAliases bounds the number of aliases from another node.
const maxAliases = 64

var aliasPattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,253}[a-zA-Z0-9])?$`)

// endpoint is what Podman is told about a container's place in its network, besides its address.
type endpoint struct {
	Aliases []string     `json:"aliases,omitempty"`
	Subnet  netip.Prefix `json:"subnet,omitzero"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// networkOf returns the address and the published ports of a container that is on one network of Podman.
func networkOf(found inspected) (engine.Network, []engine.Published) {
	if found.Host.NetworkMode != bridged || len(found.NetworkSettings.Networks) != 1 ||
		stateOf(found) != engine.Running {
		return engine.Network{}, nil
	}
	for name, end := range found.NetworkSettings.Networks {
		if ip, err := netip.ParseAddr(end.IPAddress); err == nil && ip.Is4() {
			// unsupported ports are refused: see portsObstacles
			ports, _ := published(found.Host.PortBindings)
			return engine.Network{Address: ip, MAC: end.MAC, Bridge: name, PrefixBits: end.IPPrefixLen}, ports
		}
	}
	return engine.Network{}, nil
}

// published lists the node's ports through which a container can be reached over IPv4. Error: there are
// other ports, which it leaves out.
func published(bindings map[string][]binding) ([]engine.Published, error) {
	var all []engine.Published
	var others error
	for _, port := range slices.Sorted(maps.Keys(bindings)) {
		for _, one := range bindings[port] {
			made, err := publishedBy(port, one)
			if err != nil {
				others = err
				continue
			}
			all = append(all, made)
		}
	}
	return all, others
}

// publishedBy parses a container's PORT/PROTOCOL and the node's port that leads to it.
func publishedBy(port string, one binding) (engine.Published, error) {
	number, protocol, _ := strings.Cut(port, "/")
	inside, err := strconv.ParseUint(number, 10, 16)
	outside, outsideErr := strconv.ParseUint(one.HostPort, 10, 16)
	made := engine.Published{Protocol: protocol, HostPort: uint16(outside), ContainerPort: uint16(inside)}
	host := netip.IPv4Unspecified()
	if one.HostIP != "" {
		var hostErr error
		host, hostErr = netip.ParseAddr(one.HostIP)
		err = errors.Join(err, hostErr)
	}
	if errors.Join(err, outsideErr) != nil || !host.Is4() || protocol != "tcp" && protocol != "udp" ||
		inside == 0 || outside == 0 {
		return made, fmt.Errorf("published port %.40s:%.10s:%.20s", one.HostIP, one.HostPort, port)
	}
	if !host.IsUnspecified() {
		made.Host = host
	}
	return made, nil
}

// endpointOf returns the endpoint of a running container.
func endpointOf(ctx context.Context, found inspected, own engine.Network) (*endpoint, error) {
	if !own.OnBridge() {
		return nil, nil //nolint:nilnil // there is none
	}
	end := &endpoint{}
	told, err := inspectNetwork(ctx, own.Bridge)
	if err != nil {
		return nil, err
	}
	for _, alias := range found.NetworkSettings.Networks[own.Bridge].Aliases {
		// Podman's own alias; and Podman accepts no aliases on a network without DNS
		if told.DNS && !strings.HasPrefix(found.ID, alias) && alias != found.Name {
			end.Aliases = append(end.Aliases, alias)
		}
	}
	for _, part := range told.Subnets {
		if part.Subnet.Contains(own.Address) {
			end.Subnet, end.Gateway = part.Subnet, part.Gateway
		}
	}
	return end, nil
}

// podmanNetwork is the part of `podman network inspect` that this package needs.
type podmanNetwork struct {
	Name    string            `json:"name"`
	Device  string            `json:"network_interface"`
	Driver  string            `json:"driver"`
	DNS     bool              `json:"dns_enabled"`
	Labels  map[string]string `json:"labels"`
	Subnets []subnet          `json:"subnets"`
	Options map[string]string `json:"options"`
	IPAM    map[string]string `json:"ipam_options"`
}

type subnet struct {
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"`
}

// errNoNetwork says that the network does not exist.
var errNoNetwork = errors.New("no such network")

// inspectNetwork queries Podman for a network. Error: errNoNetwork.
func inspectNetwork(ctx context.Context, name string) (podmanNetwork, error) {
	data, err := podman(ctx, "network", "inspect", "--", name)
	if says(err, "network not found", "no such network") {
		return podmanNetwork{}, errNoNetwork
	}
	var told []podmanNetwork
	if err == nil {
		err = json.Unmarshal(data, &told)
	}
	if err == nil && len(told) != 1 {
		err = fmt.Errorf("%d answers", len(told))
	}
	if err != nil {
		return podmanNetwork{}, fmt.Errorf("ask Podman about network %s: %w", name, err)
	}
	return told[0], nil
}

// obstacles lists the properties of a network that keep its addresses from moving.
func (n podmanNetwork) obstacles(name string) []engine.Problem {
	p, what := problems{}, "network "+name+" of Podman"
	p.add(n.Driver != "bridge", what, "its driver is "+n.Driver, "use a network of driver bridge")
	p.add(n.IPAM["driver"] != "" && n.IPAM["driver"] != "host-local", what,
		"its addresses come from "+n.IPAM["driver"], "use one with a subnet")
	p.add(n.Options["mode"] == "unmanaged", what, "its bridge is not Podman's",
		"use one without mode=unmanaged")
	return p
}

// checkNetwork requires the address in the definition's common part to be the address with which Podman
// makes the container.
func checkNetwork(d engine.Definition, x extra) error {
	own := d.Network
	if own == (engine.Network{}) && x.Host.NetworkMode != bridged && x.Endpoint == nil && len(d.Ports) == 0 {
		return nil
	}
	if x.Host.NetworkMode != bridged || !namePattern.MatchString(own.Bridge) {
		return fmt.Errorf("it has an address of %.80q, and network %.80q", own.Bridge, x.Host.NetworkMode)
	}
	if mac, err := net.ParseMAC(own.MAC); err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return fmt.Errorf("hardware address %.40q is not a valid unicast address", own.MAC)
	}
	ports, err := published(x.Host.PortBindings)
	if err == nil && !slices.Equal(ports, d.Ports) {
		err = errors.New("its published ports do not match its configuration")
	}
	return errors.Join(err, oci.CheckBridge(d), checkEndpoint(x.Endpoint))
}

func checkEndpoint(end *endpoint) error {
	if end == nil {
		return nil
	}
	if len(end.Aliases) > maxAliases {
		return fmt.Errorf("%d aliases: at most %d", len(end.Aliases), maxAliases)
	}
	for _, alias := range end.Aliases {
		if !aliasPattern.MatchString(alias) {
			return fmt.Errorf("alias %.80q is not valid", alias)
		}
	}
	return nil
}

// network makes Podman give the container its previous addresses and ports.
func (f *flags) network(d engine.Definition, x extra) error {
	own := d.Network
	if !own.OnBridge() {
		f.text("network", x.Host.NetworkMode)
		return nil
	}
	place := own.Bridge + ":ip=" + own.Address.String() + ",mac=" + own.MAC
	if x.Endpoint != nil {
		for _, alias := range x.Endpoint.Aliases {
			place += ",alias=" + alias
		}
	}
	f.add("network", place)
	ports, err := published(x.Host.PortBindings)
	for _, port := range ports {
		host := ""
		if port.Host.IsValid() {
			host = port.Host.String() + ":"
		}
		f.add("publish", fmt.Sprintf("%s%d:%d/%s", host, port.HostPort, port.ContainerPort, port.Protocol))
	}
	return err
}

// connectedObstacles lists the properties of a running container's networks that cannot move.
func connectedObstacles(ctx context.Context, found inspected) []engine.Problem {
	if found.Host.NetworkMode != bridged {
		return nil
	}
	p, all := problems{}, found.NetworkSettings.Networks
	names := slices.Sorted(maps.Keys(all))
	if len(names) != 1 {
		p.add(true, "networks "+strings.Join(names, ", "),
			"only a container on one network of Podman's can be moved",
			"podman network disconnect all but one")
		return p
	}
	end := all[names[0]]
	ip, err := netip.ParseAddr(end.IPAddress)
	p.add(err != nil || !ip.Is4(), "network "+names[0], "the container has no IPv4 address in it",
		"use a network with an IPv4 subnet")
	p.add(end.GlobalIPv6 != "", "address "+end.GlobalIPv6, "IPv6 addresses are not moved",
		"use a network without IPv6")
	ctx, cancel := asking(ctx)
	defer cancel()
	// otherwise describing the container reports the error
	if told, err := inspectNetwork(ctx, names[0]); err == nil {
		p = append(p, told.obstacles(names[0])...)
	}
	return p
}

// networkObstacles refuses networks that no node can make.
func networkObstacles(h host) []engine.Problem {
	p, what := problems{}, "--network "+h.NetworkMode
	const own = "give it a network of its own"
	other, sharing := strings.CutPrefix(h.NetworkMode, "container:")
	switch {
	case sharing:
		p.add(true, what, fmt.Sprintf("it shares the network of container %.12s, which would have to move "+
			"with it", other), own)
	case h.NetworkMode == bridged:
		_, err := published(h.PortBindings)
		p.add(err != nil, fmt.Sprint(err), "only TCP and UDP by IPv4 move", "publish it by IPv4")
	default:
		p.add(h.NetworkMode != "none" && h.NetworkMode != "host", what, "it is not a bridge network of "+
			"Podman",
			"podman network create --subnet on both nodes, and start the container on that network")
	}
	return p
}

// addressObstacles requires the network to exist here, with this address and these ports free.
func (a *adapter) addressObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem,
	error) {
	own := d.Network
	if !own.OnBridge() {
		return nil, nil
	}
	what := "network " + own.Bridge + " of Podman"
	told, err := inspectNetwork(ctx, own.Bridge)
	if errors.Is(err, errNoNetwork) {
		return []engine.Problem{{What: what, Why: "this node has no network of this name",
			Remedy: makeNetwork(own, x.Endpoint, false)}}, nil
	}
	if err != nil {
		return nil, err
	}
	p := problems(told.obstacles(own.Bridge))
	_, routed := told.Labels[oci.RoutedLabel]
	p.add(own.Routed && !routed, what, "at the source, nodes route its addresses to each other; on this "+
		"node they do not",
		makeNetwork(own, x.Endpoint, true))
	at := slices.IndexFunc(told.Subnets, func(part subnet) bool { return part.Subnet.Contains(own.Address) })
	if at < 0 {
		p.add(len(p) == 0, what, own.Address.String()+" is not in the network's subnet on this node",
			makeNetwork(own, x.Endpoint, true))
		return p, nil
	}
	here, err := a.List(ctx, a.guarded) // Podman reports nothing about a container that it is starting
	if err != nil {
		return nil, err
	}
	p = append(p, addressTaken(own, told.Subnets[at].Gateway, here)...)
	publisher := func(port engine.Published) string {
		for _, other := range here {
			if oci.Publishes(other.Container.Definition, port) {
				return other.Container.Definition.Name
			}
		}
		return ""
	}
	return append(p, oci.TakenPorts(ctx, d.Ports, publisher)...), nil
}

// defaultNetwork is the network of containers for which no network was named.
const defaultNetwork = "podman"

// makeNetwork returns instructions for making the network on another node, where a network of this name may
// already exist. The default network cannot be made on demand.
func makeNetwork(own engine.Network, end *endpoint, already bool) string {
	if own.Bridge == defaultNetwork {
		return `give Podman's default network the same subnet on both nodes (default_subnet in ` +
			`containers.conf), or start the container on one of its own: ` +
			"podman network create --subnet on both nodes"
	}
	command := "podman network create on both nodes, with the same --subnet"
	switch {
	case end == nil || !end.Subnet.IsValid():
	case own.Routed:
		command = "godwit engine setup podman --network " + own.Bridge + " --subnet " + end.Subnet.String()
	default:
		command = "podman network create --subnet " + end.Subnet.String()
		if end.Gateway.IsValid() {
			command += " --gateway " + end.Gateway.String()
		}
		command += " " + own.Bridge
	}
	if already {
		return "podman network rm " + own.Bridge + " here, and " + command
	}
	return command
}

// addressTaken refuses an address that the bridge or another container has here.
func addressTaken(own engine.Network, gateway netip.Addr, here []oci.Container) []engine.Problem {
	who := ""
	if own.Address == gateway {
		who = "the bridge"
	}
	for _, other := range here {
		if one := other.Container.Definition; one.Network.Bridge == own.Bridge &&
			one.Network.Address == own.Address {
			who = "container " + one.Name
		}
	}
	if who == "" {
		return nil
	}
	return []engine.Problem{{
		What: "address " + own.Address.String(), Why: who + " of Podman on this node has it",
		Remedy: "stop that container, or start this one with --ip and an address that is free on both " +
			"nodes, preferably of a network of its own: podman network create --subnet on both nodes",
	}}
}
