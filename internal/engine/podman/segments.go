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

// networksDir is where Podman keeps its networks unless it is configured otherwise
// (network_config_dir in containers.conf(5)).
const networksDir = "/etc/containers/networks"

// askSegmentsEvery is how often Podman is asked which networks it has, if nobody can see that they
// have changed: it tells nobody.
const askSegmentsEvery = time.Minute

// segments are those of this node, and when Podman was asked.
type segments struct {
	directory string

	mu      sync.Mutex
	known   []engine.Segment
	asked   time.Time
	changed time.Time // of the directory, then
}

// list asks Podman, unless nothing has changed since.
func (s *segments) list(ctx context.Context) ([]engine.Segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed time.Time
	if info, err := os.Stat(s.directory); err == nil {
		changed = info.ModTime()
	}
	if changed.Equal(s.changed) && time.Since(s.asked) < askSegmentsEvery {
		return s.known, nil
	}
	asked := time.Now()
	found, err := askSegments(ctx)
	if err != nil {
		return nil, err
	}
	s.known, s.asked, s.changed = found, asked, changed
	return found, nil
}

func askSegments(ctx context.Context) ([]engine.Segment, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	data, err := podman(ctx, "network", "ls", "--filter", "label="+oci.SegmentLabel, "--format", "json")
	var told []podmanNetwork
	if err == nil {
		err = json.Unmarshal(data, &told)
	}
	if err != nil {
		return nil, fmt.Errorf("list the networks of Podman: %w", err)
	}
	var all []engine.Segment
	for _, one := range told {
		if one.Driver == "bridge" && len(one.Subnets) == 1 && one.Device != "" {
			all = append(all, engine.Segment{Name: one.Name, Device: one.Device, Subnet: one.Subnets[0].Subnet})
		}
	}
	slices.SortFunc(all, func(a, b engine.Segment) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Segments lists the networks of this node's Podman whose addresses nodes route to each other.
// Error: engine.ErrAway.
func (e *Engine) Segments(ctx context.Context) ([]engine.Segment, error) {
	if err := e.podman.Away(); err != nil {
		return nil, err
	}
	return e.podman.segments.list(ctx)
}

// isSegment tells whether nodes route the addresses of a network to each other. If Podman does not
// say, who moves the container asks again.
func (a *adapter) isSegment(ctx context.Context, name string) bool {
	all, err := a.segments.list(ctx)
	return err == nil && slices.ContainsFunc(all, func(one engine.Segment) bool { return one.Name == name })
}

// MakeSegment makes a network whose addresses nodes route to each other, of which this node has one
// part: see oci.ChosenByEngine. One that is there as asked is left as it is.
func (e *Engine) MakeSegment(ctx context.Context, name string, subnet, part netip.Prefix, mtu int) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("network %.80q is not a name that Podman allows", name)
	}
	gateway := part.Addr().Next()
	told, err := inspectNetwork(ctx, name)
	switch {
	case err == nil && told.isSegment(subnet, gateway):
		return nil
	case err == nil:
		return fmt.Errorf("Podman has another network %s already: remove it, or choose another name with --network", name) //nolint:staticcheck // its name
	case !errors.Is(err, errNoNetwork):
		return err
	}
	_, err = podman(ctx, "network", "create", "--driver=bridge", "--label="+oci.SegmentLabel+"="+subnet.String(), "--opt=mtu="+strconv.Itoa(mtu),
		"--subnet="+subnet.String(), "--ip-range="+oci.ChosenByEngine(part).String(), "--gateway="+gateway.String(), name)
	if err != nil {
		return fmt.Errorf("have Podman make network %s: %w", name, err)
	}
	return nil
}

// isSegment tells whether a network is the part of a segment of a node with this address in it.
func (n podmanNetwork) isSegment(subnet netip.Prefix, gateway netip.Addr) bool {
	_, is := n.Labels[oci.SegmentLabel]
	return is && n.Driver == "bridge" && len(n.Subnets) == 1 && n.Subnets[0].Subnet == subnet && n.Subnets[0].Gateway == gateway
}

// RemoveSegments removes such networks: all, or none if a container has one, running or not.
func (e *Engine) RemoveSegments(ctx context.Context) error {
	all, err := e.Segments(ctx)
	if errors.Is(err, engine.ErrAway) {
		return nil // they are Podman's, and harm nobody
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
			return fmt.Errorf("containers are on network %s: %s; remove or move them first", one.Name, strings.Join(on, ", "))
		}
	}
	for _, one := range all {
		if _, err := podman(ctx, "network", "rm", "--", one.Name); err != nil {
			return fmt.Errorf("have Podman remove network %s: %w", one.Name, err)
		}
	}
	return nil
}

// namesOn are the containers on a network.
func namesOn(network string, all []oci.Container) (names []string) {
	for _, found := range all {
		one := native(found)
		if _, is := one.NetworkSettings.Networks[network]; is {
			names = append(names, one.Name)
		}
	}
	return names
}
