package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/engine/docker"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// defaultSegment is the subnet of the network that is made for containers of Docker; each node has a /24 of it. See defaultPool.
const defaultSegment = "10.58.0.0/16"

// segmentSettings say which network of Docker's is made, or removed.
type segmentSettings struct {
	name, subnet, state string
}

func (s *segmentSettings) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.name, "network", "", "also make a network of Docker's of this name, whose addresses the nodes route to each other")
	cmd.Flags().StringVar(&s.subnet, "subnet", defaultSegment, "subnet of that network, the same on all nodes; each has the /24 of its number")
	cmd.Flags().StringVar(&s.state, "state", defaultState, "state directory of the agent")
}

// make makes the network, if one is asked for.
func (s *segmentSettings) make(ctx context.Context, socket string, out io.Writer) error {
	if s.name == "" {
		return nil
	}
	subnet, err := netip.ParsePrefix(s.subnet)
	if err != nil {
		return fmt.Errorf("subnet of the network: %w", err)
	}
	id, err := identity.Load(s.state)
	if err != nil {
		return err
	}
	part, err := network.Segment{Subnet: subnet}.Part(id.Node.Number)
	if err == nil && subnet.Overlaps(id.Pool) {
		err = fmt.Errorf("subnet %s overlaps %s, of which Godwit gives addresses: choose another with --subnet", subnet, id.Pool)
	}
	if err != nil {
		return err
	}
	tunnel, err := net.InterfaceByName(network.TunnelDevice)
	if err != nil {
		return fmt.Errorf("find the tunnel to other nodes: %w: start the agent first", err)
	}
	containers, err := docker.New(docker.Config{StateDir: s.state, Socket: socket})
	if err != nil {
		return err
	}
	if err := checkSegment(ctx, containers, subnet); err != nil {
		return err
	}
	if err := containers.MakeSegment(ctx, s.name, subnet, part, tunnel.MTU); err != nil {
		return err
	}
	fmt.Fprintf(out, "Docker has network %s: %s, of which this node has %s\n", s.name, subnet, part)
	first, last := docker.AddressesToAskFor(part)
	fmt.Fprintf(out, "start what is to move with an --ip of its own, from %s to %s: others Docker would give again\n", first, last)
	return nil
}

// checkSegment refuses a subnet that something else on this machine uses. What setup has made before is for Docker to compare.
func checkSegment(ctx context.Context, containers *docker.Engine, subnet netip.Prefix) error {
	made, err := containers.Segments(ctx)
	if err != nil {
		return err
	}
	var devices []string
	for _, segment := range made {
		devices = append(devices, segment.Device)
	}
	if err := network.CheckFree("", subnet, devices...); err != nil {
		return fmt.Errorf("subnet of the network: %w; choose another with --subnet, the same on all nodes", err)
	}
	return nil
}

// removeSegments removes all that setup has made on this node.
func removeSegments(ctx context.Context, socket, state string) error {
	containers, err := docker.New(docker.Config{StateDir: state, Socket: socket})
	if err != nil {
		return err
	}
	return containers.RemoveSegments(ctx)
}
