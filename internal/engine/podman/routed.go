package podman

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// networksDir is Podman's default directory for its networks (network_config_dir in containers.conf(5)).
const networksDir = "/etc/containers/networks"

// askRoutedEvery is how often Podman is queried for its networks if their directory has not changed: Podman
// does not report changes of networks.
const askRoutedEvery = time.Minute

// routedCache holds the routed networks of this node's Podman, and the time of the query.
type routedCache struct {
	directory string

	mu      sync.Mutex
	known   []engine.RoutedNetwork
	asked   time.Time
	changed time.Time // modification time of the directory at the query
}

// list queries Podman, unless nothing has changed since the last query.
func (c *routedCache) list(ctx context.Context) ([]engine.RoutedNetwork, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var changed time.Time
	if info, err := os.Stat(c.directory); err == nil {
		changed = info.ModTime()
	}
	if changed.Equal(c.changed) && time.Since(c.asked) < askRoutedEvery {
		return c.known, nil
	}
	asked := time.Now()
	found, err := askRouted(ctx)
	if err != nil {
		return nil, err
	}
	c.known, c.asked, c.changed = found, asked, changed
	return found, nil
}

func askRouted(ctx context.Context) ([]engine.RoutedNetwork, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	data, err := podman(ctx, "network", "ls", "--filter", "label="+oci.RoutedLabel, "--format", "json")
	var told []podmanNetwork
	if err == nil {
		err = json.Unmarshal(data, &told)
	}
	if err != nil {
		return nil, fmt.Errorf("list the networks of Podman: %w", err)
	}
	var all []engine.RoutedNetwork
	for _, one := range told {
		if one.Driver == "bridge" && len(one.Subnets) == 1 && one.Device != "" {
			all = append(all, engine.RoutedNetwork{
				Name: one.Name, Device: one.Device, Subnet: one.Subnets[0].Subnet,
			})
		}
	}
	slices.SortFunc(all, func(a, b engine.RoutedNetwork) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// RoutedNetworks lists the routed networks of this node's Podman. Error: engine.ErrAway.
func (e *Engine) RoutedNetworks(ctx context.Context) ([]engine.RoutedNetwork, error) {
	if err := e.podman.Away(); err != nil {
		return nil, err
	}
	return e.podman.routed.list(ctx)
}

// isRouted reports whether a network is a routed network. If Podman does not answer, whoever moves the
// container asks again.
func (a *adapter) isRouted(ctx context.Context, name string) bool {
	all, err := a.routed.list(ctx)
	named := func(routed engine.RoutedNetwork) bool { return routed.Name == name }
	return err == nil && slices.ContainsFunc(all, named)
}

// AddRoutedNetwork makes a routed network with this node's part of its addresses: see oci.ChosenByEngine.
// It leaves a network alone that exists as requested.
func (e *Engine) AddRoutedNetwork(
	ctx context.Context, name string, subnet, part netip.Prefix, mtu int,
) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("network %.80q is not a name that Podman allows", name)
	}
	gateway := part.Addr().Next()
	told, err := inspectNetwork(ctx, name)
	switch {
	case err == nil && told.isRouted(subnet, gateway):
		return nil
	case err == nil:
		//nolint:staticcheck // its name
		return fmt.Errorf("Podman has another network %s already: remove it, or choose another name with "+
			"--network", name)
	case !errors.Is(err, errNoNetwork):
		return err
	}
	_, err = podman(ctx, "network", "create", "--driver=bridge",
		"--label="+oci.RoutedLabel+"="+subnet.String(), "--opt=mtu="+strconv.Itoa(mtu),
		"--subnet="+subnet.String(), "--ip-range="+oci.ChosenByEngine(part).String(),
		"--gateway="+gateway.String(), name)
	if err != nil {
		return fmt.Errorf("have Podman make network %s: %w", name, err)
	}
	return nil
}

// isRouted reports whether a network is a node's part of the routed network with this subnet, and has this
// gateway.
func (n podmanNetwork) isRouted(subnet netip.Prefix, gateway netip.Addr) bool {
	_, is := n.Labels[oci.RoutedLabel]
	return is && n.Driver == "bridge" && len(n.Subnets) == 1 && n.Subnets[0].Subnet == subnet &&
		n.Subnets[0].Gateway == gateway
}

// RemoveRoutedNetworks removes all routed networks, or none if a container is on one, running or not.
func (e *Engine) RemoveRoutedNetworks(ctx context.Context) error {
	all, err := e.RoutedNetworks(ctx)
	if errors.Is(err, engine.ErrAway) {
		return nil // the networks are Podman's, and do no harm
	}
	if err != nil || len(all) == 0 {
		return err
	}
	containers, err := e.podman.List(ctx, func(string) bool { return false })
	if err != nil {
		return err
	}
	for _, one := range all {
		if on := namesOn(one.Name, containers); len(on) > 0 {
			return fmt.Errorf("containers are on network %s: %s; remove or move them first", one.Name,
				strings.Join(on, ", "))
		}
	}
	for _, one := range all {
		if _, err := podman(ctx, "network", "rm", "--", one.Name); err != nil {
			return fmt.Errorf("have Podman remove network %s: %w", one.Name, err)
		}
	}
	return nil
}

// namesOn returns the names of the containers on a network.
func namesOn(network string, all []oci.Container) (names []string) {
	for _, found := range all {
		one := native(found)
		if _, is := one.NetworkSettings.Networks[network]; is {
			names = append(names, one.Name)
		}
	}
	return names
}
