package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd"
	"github.com/godwit/godwit/internal/engine/docker"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/podman"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/network/tunnel"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Default subnets of the engines' routed networks; each node has a /24 of each. See defaultPool.
const (
	defaultDockerSubnet     = "10.58.0.0/16"
	defaultPodmanSubnet     = "10.59.0.0/16"
	defaultContainerdSubnet = "10.60.0.0/16"
)

// routedSettings describes the routed network that setup creates.
type routedSettings struct {
	name, subnet, state string
}

// routedEngine is an engine that supports routed networks.
type routedEngine interface {
	RoutedNetworks(ctx context.Context) ([]engine.RoutedNetwork, error)
	AddRoutedNetwork(ctx context.Context, name string, subnet, part netip.Prefix, mtu int) error
	RemoveRoutedNetworks(ctx context.Context) error
}

// routedEngine returns an engine, and the default subnet of its routed network.
func (s engineSettings) routedEngine(name, state string) (one routedEngine, subnet string, err error) {
	switch name {
	case docker.Name:
		one, err = docker.New(docker.Config{StateDir: state, Socket: s.docker.Socket})
		return one, defaultDockerSubnet, err
	case podman.Name:
		one, err = podman.New(podman.Config{StateDir: state})
		return one, defaultPodmanSubnet, err
	}
	one, err = containerd.New(containerd.Config{StateDir: state})
	return one, defaultContainerdSubnet, err
}

func (s *routedSettings) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.name, "network", "",
		"also create a network of this name, whose containers are reachable from all nodes")
	cmd.Flags().StringVar(&s.subnet, "subnet", "",
		"subnet of that network, the same on all nodes; each node uses the /24 of its number\n(default "+
			defaultDockerSubnet+" for Docker, "+defaultPodmanSubnet+" for Podman, "+
			defaultContainerdSubnet+" for containerd)")
	cmd.Flags().StringVar(&s.state, "state", defaultState, "state directory of the agent")
}

// make creates the network, if the user asked for one.
func (s *routedSettings) make(ctx context.Context, engines engineSettings, name string, out io.Writer) error {
	if s.name == "" {
		return nil
	}
	containers, usual, err := engines.routedEngine(name, s.state)
	if err != nil {
		return err
	}
	subnet, err := netip.ParsePrefix(cmp.Or(s.subnet, usual))
	if err != nil {
		return fmt.Errorf("subnet of the network: %w", err)
	}
	id, err := identity.Load(s.state)
	if err != nil {
		return err
	}
	part, err := network.RoutedNetwork{Subnet: subnet}.Part(id.Node.Number)
	if err == nil && subnet.Overlaps(id.Pool) {
		err = fmt.Errorf("subnet %s overlaps %s, the pool of Godwit's container addresses: choose "+
			"another with "+
			"--subnet", subnet, id.Pool)
	}
	if err != nil {
		return err
	}
	device, err := net.InterfaceByName(tunnel.Device)
	if err != nil {
		return fmt.Errorf("find the tunnel to other nodes: %w: start the agent first", err)
	}
	if err := checkRouted(ctx, containers, subnet); err != nil {
		return err
	}
	if err := engines.checkOthers(ctx, name, s.state, subnet, out); err != nil {
		return err
	}
	if err := containers.AddRoutedNetwork(ctx, s.name, subnet, part, device.MTU); err != nil {
		return err
	}
	_, title := engines.of(name)
	fmt.Fprintf(out, "%s has network %s: %s, of which this node has %s\n", title, s.name, subnet, part)
	if name == containerd.Name {
		fmt.Fprintf(out, "ctr run --cni, and other users of CNI, take the first list in /etc/cni/net.d "+
			"by file name: check which list is first now\n")
		return nil
	}
	first, last := oci.AddressesToAskFor(part)
	fmt.Fprintf(out, "give each container that will move an explicit --ip from %s to %s: %s may reuse "+
		"other addresses\n", first, last, title)
	return nil
}

// checkRouted refuses a subnet that something else on this machine uses. The engine compares the subnet
// with the routed networks that setup created before.
func checkRouted(ctx context.Context, containers routedEngine, subnet netip.Prefix) error {
	made, err := containers.RoutedNetworks(ctx)
	if err != nil {
		return err
	}
	var devices []string
	for _, routed := range made {
		devices = append(devices, routed.Device)
	}
	if err := foreign.CheckFree("", subnet, devices...); err != nil {
		return fmt.Errorf("subnet of the network: %w; choose another with --subnet, the same on all nodes",
			err)
	}
	return nil
}

// checkOthers refuses a subnet that overlaps a routed network of another engine: a network of Podman has no
// device while it has no containers. checkOthers does not wait for an engine that does not answer.
func (s engineSettings) checkOthers(ctx context.Context, name, state string, subnet netip.Prefix,
	out io.Writer) error {
	for _, other := range engineNames() {
		containers, _, err := s.routedEngine(other, state)
		if err != nil || other == name {
			continue
		}
		made, err := containers.RoutedNetworks(ctx)
		_, title := s.of(other)
		if err != nil && !errors.Is(err, engine.ErrAway) {
			fmt.Fprintf(out, "warning: cannot check whether a network of %s uses the same subnet: %v\n",
				title, err)
		}
		for _, one := range made {
			if one.Subnet.Overlaps(subnet) {
				return fmt.Errorf("subnet %s overlaps network %s of %s: choose another with --subnet, the "+
					"same on all nodes", subnet, one.Name, title)
			}
		}
	}
	return nil
}

// removeRouted removes an engine's routed networks on this node.
func (s engineSettings) removeRouted(ctx context.Context, name string) error {
	containers, _, err := s.routedEngine(name, defaultState)
	if err != nil {
		return err
	}
	return containers.RemoveRoutedNetworks(ctx)
}
