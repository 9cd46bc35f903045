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

// RoutedNetworks lists the routed networks of this node's Docker. Error: engine.ErrAway.
func (e *Engine) RoutedNetworks(ctx context.Context) ([]engine.RoutedNetwork, error) {
	if err := e.docker.Away(); err != nil {
		return nil, err
	}
	ctx, cancel := asking(ctx)
	defer cancel()
	options := client.NetworkListOptions{Filters: make(client.Filters).Add("label", oci.RoutedLabel)}
	listed, err := e.docker.api(ctx).NetworkList(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list the networks of Docker: %w", err)
	}
	var all []engine.RoutedNetwork
	for _, one := range listed.Items {
		if one.Driver == "bridge" && len(one.IPAM.Config) == 1 {
			all = append(all, engine.RoutedNetwork{
				Name: one.Name, Device: bridgeName(one.Network), Subnet: one.IPAM.Config[0].Subnet,
			})
		}
	}
	slices.SortFunc(all, func(a, b engine.RoutedNetwork) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// bridgeName returns the name of the device that Docker has made for a network.
func bridgeName(one network.Network) string {
	if name := one.Options[optionName]; name != "" {
		return name
	}
	return "br-" + one.ID[:min(12, len(one.ID))]
}

// isRouted reports whether a network is a routed network. That never changes in the life of a network.
func (a *adapter) isRouted(ctx context.Context, end *network.EndpointSettings) bool {
	a.mu.Lock()
	is, known := a.routed[end.NetworkID]
	a.mu.Unlock()
	if known || end.NetworkID == "" {
		return is
	}
	told, err := a.api(ctx).NetworkInspect(ctx, end.NetworkID, client.NetworkInspectOptions{})
	if err != nil {
		return false // the migration's caller asks again
	}
	_, is = told.Network.Labels[oci.RoutedLabel]
	a.mu.Lock()
	defer a.mu.Unlock()
	a.routed[end.NetworkID] = is
	return is
}

// AddRoutedNetwork makes a routed network with this node's part of its addresses. Docker itself assigns
// only the upper half of that part, because it would assign the address of a container that has left again.
// Users may request addresses of the lower half. AddRoutedNetwork leaves a network alone that exists as
// requested, even if Docker assigns all of its addresses.
func (e *Engine) AddRoutedNetwork(
	ctx context.Context, name string, subnet, part netip.Prefix, mtu int,
) error {
	api := e.docker.api(ctx)
	told, err := api.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err == nil {
		config := told.Network.IPAM.Config
		_, is := told.Network.Labels[oci.RoutedLabel]
		if is && len(config) == 1 && config[0].Subnet == subnet &&
			(config[0].IPRange == oci.ChosenByEngine(part) || config[0].IPRange == part) {
			return nil
		}
		//nolint:staticcheck // its name
		return fmt.Errorf("Docker has another network %s already: remove it, or choose another name with "+
			"--network", name)
	}
	if !errdefs.IsNotFound(err) {
		return fmt.Errorf("ask Docker about network %s: %w", name, err)
	}
	_, err = api.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Driver: "bridge", Labels: map[string]string{oci.RoutedLabel: subnet.String()},
		Options: map[string]string{optionMTU: strconv.Itoa(mtu)},
		IPAM: &network.IPAM{Config: []network.IPAMConfig{{
			Subnet: subnet, IPRange: oci.ChosenByEngine(part), Gateway: part.Addr().Next(),
			// some programs take these for the address of the network, and for its broadcast address
			AuxAddress: map[string]netip.Addr{"first": part.Addr(), "last": lastOf(part)},
		}}},
	})
	if err != nil {
		return fmt.Errorf("have Docker make network %s: %w", name, err)
	}
	return nil
}

// lastOf returns the last address of a prefix of 24 bits.
func lastOf(part netip.Prefix) netip.Addr {
	bytes := part.Addr().As4()
	bytes[3] = 255
	return netip.AddrFrom4(bytes)
}

// RemoveRoutedNetworks removes all routed networks, or none if a container is on one of them. Docker itself
// would remove the network of a stopped container, which then could not start any more.
func (e *Engine) RemoveRoutedNetworks(ctx context.Context) error {
	all, err := e.RoutedNetworks(ctx)
	if errors.Is(err, engine.ErrAway) {
		return nil // the networks are Docker's, and do no harm
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
		if _, err := e.docker.api(ctx).NetworkRemove(ctx, one.Name,
			client.NetworkRemoveOptions{}); err != nil {
			return fmt.Errorf("have Docker remove network %s: %w", one.Name, err)
		}
	}
	return nil
}

// noneOn requires that no container, running or not, is on a network.
func (e *Engine) noneOn(ctx context.Context, name string) error {
	all, err := e.docker.api(ctx).ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return fmt.Errorf("ask Docker for the containers of network %s: %w", name, err)
	}
	var on []string
	for _, one := range all.Items {
		if one.HostConfig.NetworkMode == name || one.NetworkSettings != nil &&
			one.NetworkSettings.Networks[name] != nil {
			on = append(on, strings.TrimPrefix(slices.Concat(one.Names, []string{one.ID})[0], "/"))
		}
	}
	if len(on) > 0 {
		return fmt.Errorf("containers are on network %s: %s; remove or move them first",
			name, strings.Join(on, ", "))
	}
	return nil
}
