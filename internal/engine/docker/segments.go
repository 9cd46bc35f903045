package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Options of Docker's driver for bridges.
const (
	optionName = "com.docker.network.bridge.name"
	optionMTU  = "com.docker.network.driver.mtu"
)

// Segments lists the networks of this node's Docker whose addresses nodes route to each other.
// Error: engine.ErrAway.
func (e *Engine) Segments(ctx context.Context) ([]engine.Segment, error) {
	if err := e.docker.Away(); err != nil {
		return nil, err
	}
	ctx, cancel := asking(ctx)
	defer cancel()
	listed, err := e.docker.api(ctx).NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("label", oci.SegmentLabel)})
	if err != nil {
		return nil, fmt.Errorf("list the networks of Docker: %w", err)
	}
	var all []engine.Segment
	for _, one := range listed.Items {
		if one.Driver == "bridge" && len(one.IPAM.Config) == 1 {
			all = append(all, engine.Segment{Name: one.Name, Device: bridgeName(one.Network), Subnet: one.IPAM.Config[0].Subnet})
		}
	}
	slices.SortFunc(all, func(a, b engine.Segment) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// bridgeName is the device that Docker has made for a network.
func bridgeName(one network.Network) string {
	if name := one.Options[optionName]; name != "" {
		return name
	}
	return "br-" + one.ID[:min(12, len(one.ID))]
}

// isSegment tells whether nodes route the addresses of a network to each other. That never changes
// in the life of a network.
func (a *adapter) isSegment(ctx context.Context, end *network.EndpointSettings) bool {
	a.mu.Lock()
	is, known := a.segments[end.NetworkID]
	a.mu.Unlock()
	if known || end.NetworkID == "" {
		return is
	}
	told, err := a.api(ctx).NetworkInspect(ctx, end.NetworkID, client.NetworkInspectOptions{})
	if err != nil {
		return false // who moves the container asks again
	}
	_, is = told.Network.Labels[oci.SegmentLabel]
	a.mu.Lock()
	defer a.mu.Unlock()
	a.segments[end.NetworkID] = is
	return is
}

// MakeSegment makes a network whose addresses nodes route to each other, of which this node has one
// part. Its Docker gives those of the upper half of that by itself: it would give one again whose
// container has left. The others are for who asks for one. A network that is there as asked is left
// as it is, also one whose Docker gives all of them.
func (e *Engine) MakeSegment(ctx context.Context, name string, subnet, part netip.Prefix, mtu int) error {
	api := e.docker.api(ctx)
	told, err := api.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err == nil {
		config := told.Network.IPAM.Config
		if _, is := told.Network.Labels[oci.SegmentLabel]; is && len(config) == 1 && config[0].Subnet == subnet && (config[0].IPRange == oci.ChosenByEngine(part) || config[0].IPRange == part) {
			return nil
		}
		return fmt.Errorf("Docker has another network %s already: remove it, or choose another name with --network", name) //nolint:staticcheck // its name
	}
	if !errdefs.IsNotFound(err) {
		return fmt.Errorf("ask Docker about network %s: %w", name, err)
	}
	_, err = api.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Driver: "bridge", Labels: map[string]string{oci.SegmentLabel: subnet.String()}, Options: map[string]string{optionMTU: strconv.Itoa(mtu)},
		IPAM: &network.IPAM{Config: []network.IPAMConfig{{
			Subnet: subnet, IPRange: oci.ChosenByEngine(part), Gateway: part.Addr().Next(),
			AuxAddress: map[string]netip.Addr{"first": part.Addr(), "last": lastOf(part)}, // some take them for a network, and for all of it
		}}},
	})
	if err != nil {
		return fmt.Errorf("have Docker make network %s: %w", name, err)
	}
	return nil
}

// lastOf is the last address of a prefix of 24 bits.
func lastOf(part netip.Prefix) netip.Addr {
	bytes := part.Addr().As4()
	bytes[3] = 255
	return netip.AddrFrom4(bytes)
}

// RemoveSegments removes such networks: all, or none if a container has one. Docker itself would
// take one from containers that do not run, and they could not start any more.
func (e *Engine) RemoveSegments(ctx context.Context) error {
	all, err := e.Segments(ctx)
	if errors.Is(err, engine.ErrAway) {
		return nil // they are Docker's, and harm nobody
	}
	if err != nil {
		return err
	}
	for _, one := range all {
		if err := e.noneOn(ctx, one.Name); err != nil {
			return err
		}
	}
	for _, one := range all {
		if _, err := e.docker.api(ctx).NetworkRemove(ctx, one.Name, client.NetworkRemoveOptions{}); err != nil {
			return fmt.Errorf("have Docker remove network %s: %w", one.Name, err)
		}
	}
	return nil
}

// noneOn wants a network to be no container's, running or not.
func (e *Engine) noneOn(ctx context.Context, name string) error {
	all, err := e.docker.api(ctx).ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return fmt.Errorf("ask Docker for the containers of network %s: %w", name, err)
	}
	var on []string
	for _, one := range all.Items {
		if one.HostConfig.NetworkMode == name || one.NetworkSettings != nil && one.NetworkSettings.Networks[name] != nil {
			on = append(on, strings.TrimPrefix(slices.Concat(one.Names, []string{one.ID})[0], "/"))
		}
	}
	if len(on) > 0 {
		return fmt.Errorf("containers are on network %s: %s; remove or move them first", name, strings.Join(on, ", "))
	}
	return nil
}
