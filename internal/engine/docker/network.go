package docker

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
)

// defaultBridge is the network of containers for which no network was named. Containers on it cannot
// request an address.
const defaultBridge = network.NetworkBridge

const maxPorts = 1024

// networkOf returns the address and the published ports of a container that is on one network of Docker.
func networkOf(found container.InspectResponse) (engine.Network, []engine.Published) {
	if found.NetworkSettings == nil || len(found.NetworkSettings.Networks) != 1 || !found.State.Running ||
		hasOtherNetwork(found.HostConfig) {
		return engine.Network{}, nil
	}
	for name, end := range found.NetworkSettings.Networks {
		if end != nil && end.IPAddress.Is4() {
			own := engine.Network{Address: end.IPAddress, MAC: end.MacAddress.String(), Bridge: name,
				PrefixBits: end.IPPrefixLen}
			return own, published(found.NetworkSettings.Ports)
		}
	}
	return engine.Network{}, nil
}

// hasOtherNetwork reports whether a container's network is not Docker's.
func hasOtherNetwork(h *container.HostConfig) bool {
	return h.NetworkMode.IsNone() || h.NetworkMode.IsHost() || h.NetworkMode.IsContainer()
}

// published lists the node's ports through which a container can be reached over IPv4.
func published(ports network.PortMap) []engine.Published {
	var all []engine.Published
	for port, bindings := range ports {
		for _, binding := range bindings {
			number, err := strconv.ParseUint(binding.HostPort, 10, 16)
			if err != nil || binding.HostIP.IsValid() && !binding.HostIP.Is4() ||
				port.Proto() != network.TCP && port.Proto() != network.UDP {
				continue
			}
			one := engine.Published{Protocol: string(port.Proto()), HostPort: uint16(number),
				ContainerPort: port.Num()}
			if binding.HostIP.IsValid() && !binding.HostIP.IsUnspecified() {
				one.Host = binding.HostIP
			}
			all = append(all, one)
		}
	}
	return all
}

// endpoint is what Docker is told about a container's place in its network, besides its address.
type endpoint struct {
	Aliases []string     `json:"aliases,omitempty"`
	Subnet  netip.Prefix `json:"subnet,omitzero"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// endpointOf returns the endpoint of a running container.
func (a *adapter) endpointOf(ctx context.Context, found container.InspectResponse,
	own engine.Network) (*endpoint, error) {
	if !own.OnBridge() {
		return nil, nil //nolint:nilnil // there is none
	}
	end := &endpoint{}
	for _, alias := range found.NetworkSettings.Networks[own.Bridge].Aliases {
		if !strings.HasPrefix(found.ID, alias) { // Docker's own alias
			end.Aliases = append(end.Aliases, alias)
		}
	}
	told, err := a.api(ctx).NetworkInspect(ctx, own.Bridge, client.NetworkInspectOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask Docker about network %s: %w", own.Bridge, err)
	}
	for _, part := range told.Network.IPAM.Config {
		if part.Subnet.Contains(own.Address) {
			end.Subnet, end.Gateway = part.Subnet, part.Gateway
		}
	}
	return end, nil
}

// checkNetwork requires the address in the definition's common part to be the address with which Docker
// makes the container.
func checkNetwork(d engine.Definition, x extra) error {
	own := d.Network
	switch {
	case own == (engine.Network{}) && hasOtherNetwork(x.Host):
		return nil
	case hasOtherNetwork(x.Host):
		return fmt.Errorf("it has an address, and network %.80q", x.Host.NetworkMode)
	case !own.Address.Is4() || !own.Address.IsGlobalUnicast() || !namePattern.MatchString(own.Bridge):
		return fmt.Errorf("address %s in network %.80q is not a valid address of a Docker network",
			own.Address,
			own.Bridge)
	case (own.Bridge == defaultBridge) != isDefaultBridge(x.Host.NetworkMode):
		return fmt.Errorf("its network is %.80q, and not %.80q", x.Host.NetworkMode, own.Bridge)
	case own.PrefixBits < 1 || own.PrefixBits > 30 || len(d.Ports) > maxPorts || x.Endpoint != nil &&
		len(x.Endpoint.Aliases) > maxPorts:
		return fmt.Errorf("network %.80q: too many ports or aliases, or a prefix of %d bits", own.Bridge,
			own.PrefixBits)
	}
	return nil
}

func isDefaultBridge(mode container.NetworkMode) bool {
	return mode == "" || mode.IsDefault() || mode.IsBridge()
}

// networkMode names the network by its name, which is the same on each node.
func networkMode(d engine.Definition, from container.NetworkMode) container.NetworkMode {
	if d.Network.OnBridge() && !isDefaultBridge(from) {
		return container.NetworkMode(d.Network.Bridge)
	}
	return from
}

// endpoints makes Docker give the container its previous address. On the default bridge, Docker accepts no
// requests for addresses.
func endpoints(d engine.Definition, x extra) *network.NetworkingConfig {
	if !d.Network.OnBridge() || d.Network.Bridge == defaultBridge {
		return nil
	}
	end := &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: d.Network.Address}}
	if x.Endpoint != nil {
		end.Aliases = x.Endpoint.Aliases
	}
	return &network.NetworkingConfig{
		EndpointsConfig: map[string]*network.EndpointSettings{d.Network.Bridge: end}}
}

// connectedObstacles lists the properties of a running container's networks that cannot move.
func connectedObstacles(found container.InspectResponse) []engine.Problem {
	if found.NetworkSettings == nil || hasOtherNetwork(found.HostConfig) {
		return nil
	}
	names := slices.Sorted(maps.Keys(found.NetworkSettings.Networks))
	if len(names) > 1 {
		return []engine.Problem{{
			What:   "networks " + strings.Join(names, ", "),
			Why:    "only a container on one network of Docker's can be moved",
			Remedy: "docker network disconnect all but one",
		}}
	}
	for _, name := range names {
		end := found.NetworkSettings.Networks[name]
		switch {
		case end == nil || !end.IPAddress.Is4():
			return []engine.Problem{{What: "network " + name, Why: "the container has no IPv4 address in it",
				Remedy: "docker network connect it"}}
		case end.GlobalIPv6Address.IsValid():
			return []engine.Problem{{
				What: "address " + end.GlobalIPv6Address.String(), Why: "IPv6 addresses are not moved",
				Remedy: "use a network without IPv6",
			}}
		}
	}
	return nil
}

// networkObstacles refuses networks that no node can make.
func networkObstacles(mode container.NetworkMode) []engine.Problem {
	if !mode.IsContainer() {
		return nil
	}
	return []engine.Problem{{
		What: "--network " + string(mode), Why: "it shares the network of container " +
			mode.ConnectedContainer() + ", which would have to move with it",
		Remedy: "give it a network of its own",
	}}
}

// addressObstacles requires the network to exist here, with this address free.
func (a *adapter) addressObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem,
	error) {
	own := d.Network
	if !own.OnBridge() {
		return nil, nil
	}
	what := "network " + own.Bridge + " of Docker"
	told, err := a.api(ctx).NetworkInspect(ctx, own.Bridge, client.NetworkInspectOptions{})
	if errdefs.IsNotFound(err) {
		return []engine.Problem{{What: what, Why: "this node has no network of this name",
			Remedy: makeNetwork(own, x.Endpoint, false)}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask Docker about network %s: %w", own.Bridge, err)
	}
	found := told.Network
	at := slices.IndexFunc(found.IPAM.Config,
		func(part network.IPAMConfig) bool { return part.Subnet.Contains(own.Address) })
	switch {
	case found.Driver != "bridge":
		return []engine.Problem{{What: what, Why: "its driver is " + found.Driver,
			Remedy: "use a network of driver bridge"}}, nil
	case at < 0:
		return []engine.Problem{{
			What: what, Why: own.Address.String() + " is not in the network's subnet on this node",
			Remedy: makeNetwork(own, x.Endpoint, true),
		}}, nil
	}
	return append(addressTaken(own, found, found.IPAM.Config[at]),
		a.portObstacles(ctx, x.Host.PortBindings)...), nil
}

// makeNetwork returns instructions for making the network on another node, where a network of this name may
// already exist. Docker neither makes nor removes its default bridge on demand.
func makeNetwork(own engine.Network, end *endpoint, already bool) string {
	known := end != nil && end.Subnet.IsValid()
	if own.Bridge == defaultBridge {
		const instead = "; or start the container on a network of its own: docker network create --subnet " +
			"on both nodes"
		if !known {
			return `give Docker's default bridge the same subnet on both nodes ("bip" in ` +
				`/etc/docker/daemon.json, and restart Docker)` + instead
		}
		gateway := end.Gateway
		if !gateway.IsValid() { // Docker does not report the gateway of its default bridge: the first address
			gateway = end.Subnet.Masked().Addr().Next()
		}
		return fmt.Sprintf(`put "bip": "%s" into /etc/docker/daemon.json on this node, and restart Docker`,
			netip.PrefixFrom(gateway, end.Subnet.Bits())) + instead
	}
	command := "make it on both nodes, with the same subnet"
	if known {
		command = "docker network create --subnet " + end.Subnet.String()
		if end.Gateway.IsValid() {
			command += " --gateway " + end.Gateway.String()
		}
		command += " " + own.Bridge
	}
	if already {
		return "docker network rm " + own.Bridge + " here, and " + command
	}
	return command
}

// addressTaken refuses an address that another container has here, or that Docker would not give to this
// container.
func addressTaken(own engine.Network, found network.Inspect, part network.IPAMConfig) []engine.Problem {
	const remedy = "stop that container, or start this one on a network with a subnet of its own: " +
		"docker network create --subnet on both nodes"
	what := "address " + own.Address.String()
	if !part.Gateway.IsValid() { // Docker does not report that of its default bridge: the first
		part.Gateway = part.Subnet.Masked().Addr().Next()
	}
	taken := map[netip.Addr]string{part.Gateway: "the bridge"}
	for name, ip := range part.AuxAddress {
		taken[ip] = name
	}
	for _, other := range found.Containers {
		taken[other.IPv4Address.Addr()] = "container " + other.Name
	}
	if who := taken[own.Address]; who != "" {
		return []engine.Problem{{What: what, Why: who + " of Docker on this node has it", Remedy: remedy}}
	}
	if own.Bridge != defaultBridge {
		return nil
	}
	within := part.Subnet
	if part.IPRange.IsValid() {
		within = part.IPRange
	}
	next := within.Masked().Addr()
	if next == part.Subnet.Masked().Addr() {
		next = next.Next() // the network's own address
	}
	for taken[next] != "" {
		next = next.Next()
	}
	if next == own.Address {
		return nil
	}
	return []engine.Problem{{
		What: what, Why: fmt.Sprintf("Docker does not let a container choose its address on the default "+
			"bridge, and gives %s to the next container", next),
		Remedy: "start it on a network of its own: docker network create --subnet on both nodes",
	}}
}

// portObstacles refuses published ports that another container publishes here, and ports of an address that
// this node does not have. If that cannot be found out, Docker reports the conflict when it starts the
// container.
func (a *adapter) portObstacles(ctx context.Context, ports network.PortMap) []engine.Problem {
	var found []engine.Problem
	all, err := a.api(ctx).ContainerList(ctx, client.ContainerListOptions{})
	if err != nil {
		return nil
	}
	for port, bindings := range ports {
		for _, binding := range bindings {
			what := "published port " + binding.HostPort + "/" + string(port.Proto())
			for _, other := range all.Items {
				if publishes(other, port.Proto(), binding.HostPort) {
					found = append(found, engine.Problem{
						What: what, Why: "container " + strings.Join(other.Names, ",") +
							" publishes it on this node", Remedy: "remove that container",
					})
				}
			}
			if ip := binding.HostIP; ip.IsValid() && !ip.IsUnspecified() && !ip.IsLoopback() && !isOwn(ip) {
				found = append(found, engine.Problem{
					What: what, Why: "this node has no address " + ip.String(),
					Remedy: "publish it without an address",
				})
			}
		}
	}
	return found
}

func publishes(other container.Summary, protocol network.IPProtocol, port string) bool {
	return slices.ContainsFunc(other.Ports, func(p container.PortSummary) bool {
		return p.Type == string(protocol) && p.PublicPort != 0 && strconv.Itoa(int(p.PublicPort)) == port
	})
}

// isOwn reports whether this node has an address.
func isOwn(ip netip.Addr) bool {
	own, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr() == ip
	})
}
