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

// Podman makes a container's network namespace, and has netavark make what is in it, before it
// calls the runtime. So at the target it does that for a container that comes, with the address
// that this had.

// bridged is the mode of a container that is on networks of Podman's, whichever these are.
const bridged = "bridge"

// maxAliases bounds what another node may tell.
const maxAliases = 64

var aliasPattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,253}[a-zA-Z0-9])?$`)

// endpoint is what Podman is told of a container's place in its network, beside its address.
type endpoint struct {
	Aliases []string     `json:"aliases,omitempty"`
	Subnet  netip.Prefix `json:"subnet,omitzero"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// networkOf is the address of a container that is on one network of Podman's, and the ports by
// which it is reached.
func networkOf(found inspected) (engine.Network, []engine.Published) {
	if found.Host.NetworkMode != bridged || len(found.NetworkSettings.Networks) != 1 ||
		stateOf(found) != engine.Running {
		return engine.Network{}, nil
	}
	for name, end := range found.NetworkSettings.Networks {
		if ip, err := netip.ParseAddr(end.IPAddress); err == nil && ip.Is4() {
			// those that are none are refused: see portsObstacles
			ports, _ := published(found.Host.PortBindings)
			return engine.Network{Address: ip, MAC: end.MAC, Bridge: name, PrefixBits: end.IPPrefixLen}, ports
		}
	}
	return engine.Network{}, nil
}

// published lists the ports of the node by which a container is reached, by IPv4. Error: there are
// others, which it leaves out.
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

// publishedBy reads PORT/PROTOCOL of a container, and what of the node leads to it.
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

// endpointOf is that of a container that runs.
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
		// Podman's own; and it takes none where nobody is told of them
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

// podmanNetwork is what this package must know of what `podman network inspect` tells.
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

// errNoNetwork is that there is no such network.
var errNoNetwork = errors.New("no such network")

// inspectNetwork asks Podman about a network. Error: errNoNetwork.
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

// obstacles lists what of a network makes its addresses stay.
func (n podmanNetwork) obstacles(name string) []engine.Problem {
	p, what := problems{}, "network "+name+" of Podman"
	p.add(n.Driver != "bridge", what, "its driver is "+n.Driver, "use a network of driver bridge")
	p.add(n.IPAM["driver"] != "" && n.IPAM["driver"] != "host-local", what,
		"its addresses come from "+n.IPAM["driver"], "use one with a subnet")
	p.add(n.Options["mode"] == "unmanaged", what, "its bridge is not Podman's",
		"use one without mode=unmanaged")
	return p
}

// checkNetwork wants the address that is told to the agent to be that with which Podman makes the container.
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

// network has Podman give the container the addresses that it had, and the ports.
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

// connectedObstacles lists what of a running container's networks cannot move.
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
	// otherwise who describes the container says so
	if told, err := inspectNetwork(ctx, names[0]); err == nil {
		p = append(p, told.obstacles(names[0])...)
	}
	return p
}

// networkObstacles refuses what no node can make.
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

// addressObstacles wants the network to be here too, with this address and these ports free.
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
	here, err := a.List(ctx, a.guarded) // of one that it is starting Podman says nothing
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

// defaultNetwork is the one on which containers are for which nobody has named one.
const defaultNetwork = "podman"

// makeNetwork is how the network is made on another node, where one of this name may be already.
// The default one is not made on demand.
func makeNetwork(own engine.Network, end *endpoint, already bool) string {
	if own.Bridge == defaultNetwork {
		return `give Podman's default network the same subnet on both nodes (default_subnet in containers.conf), or start the container on one of its own: ` +
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
