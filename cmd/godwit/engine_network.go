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
	"github.com/godwit/godwit/internal/wire/identity"
)

// The subnets of the networks that are made for containers of Docker, of Podman, and of containerd;
// each node has a /24 of each. See defaultPool.
const (
	defaultSegment           = "10.58.0.0/16"
	defaultPodmanSegment     = "10.59.0.0/16"
	defaultContainerdSegment = "10.60.0.0/16"
)

// segmentSettings say which network of an engine's is made.
type segmentSettings struct {
	name, subnet, state string
}

// segmenter is an engine that can have a network whose addresses nodes route to each other.
type segmenter interface {
	Segments(ctx context.Context) ([]engine.Segment, error)
	MakeSegment(ctx context.Context, name string, subnet, part netip.Prefix, mtu int) error
	RemoveSegments(ctx context.Context) error
}

// segmenter is one engine, and the subnet that such a network of it has unless another is asked for.
func (s engineSettings) segmenter(name, state string) (one segmenter, subnet string, err error) {
	switch name {
	case docker.Name:
		one, err = docker.New(docker.Config{StateDir: state, Socket: s.docker.Socket})
		return one, defaultSegment, err
	case podman.Name:
		one, err = podman.New(podman.Config{StateDir: state})
		return one, defaultPodmanSegment, err
	}
	one, err = containerd.New(containerd.Config{StateDir: state})
	return one, defaultContainerdSegment, err
}

func (s *segmentSettings) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.name, "network", "",
		"also create a network of this name, whose containers are reachable from all nodes")
	cmd.Flags().StringVar(&s.subnet, "subnet", "",
		"subnet of that network, the same on all nodes; each node uses the /24 of its number\n(default "+
			defaultSegment+" for Docker, "+defaultPodmanSegment+" for Podman, "+
			defaultContainerdSegment+" for containerd)")
	cmd.Flags().StringVar(&s.state, "state", defaultState, "state directory of the agent")
}

// make makes the network, if one is asked for.
func (s *segmentSettings) make(ctx context.Context, engines engineSettings, name string, out io.Writer) error {
	if s.name == "" {
		return nil
	}
	containers, usual, err := engines.segmenter(name, s.state)
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
	if err := checkSegment(ctx, containers, subnet); err != nil {
		return err
	}
	if err := engines.checkOthers(ctx, name, s.state, subnet, out); err != nil {
		return err
	}
	if err := containers.MakeSegment(ctx, s.name, subnet, part, tunnel.MTU); err != nil {
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
	fmt.Fprintf(out, "start containers that move with an --ip of their own, from %s to %s: "+
		"%s may give other addresses again\n", first, last, title)
	return nil
}

// checkSegment refuses a subnet that something else on this machine uses. What setup has made
// before is for the engine to compare.
func checkSegment(ctx context.Context, containers segmenter, subnet netip.Prefix) error {
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

// checkOthers refuses a subnet of which another engine has such a network: of one of Podman's there
// is nothing on the machine while it has no containers. An engine that does not answer has nobody
// wait for it.
func (s engineSettings) checkOthers(ctx context.Context, name, state string, subnet netip.Prefix, out io.Writer) error {
	for _, other := range engineNames() {
		containers, _, err := s.segmenter(other, state)
		if err != nil || other == name {
			continue
		}
		made, err := containers.Segments(ctx)
		_, title := s.of(other)
		if err != nil && !errors.Is(err, engine.ErrAway) {
			fmt.Fprintf(out, "warning: cannot tell whether a network of %s has the subnet, too: %v\n",
				title, err)
		}
		for _, one := range made {
			if one.Subnet.Overlaps(subnet) {
				return fmt.Errorf("subnet %s overlaps network %s of %s: choose another with --subnet, the same on all nodes", subnet, one.Name, title)
			}
		}
	}
	return nil
}

// removeSegments removes all that setup has made on this node for an engine.
func (s engineSettings) removeSegments(ctx context.Context, name string) error {
	containers, _, err := s.segmenter(name, defaultState)
	if err != nil {
		return err
	}
	return containers.RemoveSegments(ctx)
}
