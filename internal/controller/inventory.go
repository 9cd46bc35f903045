package controller

import (
	"errors"
	"fmt"
	"math"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// Bounds of what an agent says.
const (
	maxContainers = 20_000
	maxLinks      = 10_000
	maxLabels     = 16
	maxLabelBytes = 1024
	maxFieldBytes = 512
)

// checkState refuses a node's state that does not fit.
func checkState(s *api.NodeState) error {
	if s == nil {
		return errors.New("the first message of an agent has no state")
	}
	if len(s.Containers) > maxContainers || len(s.Links) > maxLinks || s.FreeBytes < 0 ||
		len(s.Version) > maxFieldBytes || len(s.Address) > maxFieldBytes {
		return fmt.Errorf("state with %d containers, %d links and %d free bytes: the limits are %d and %d",
			len(s.Containers), len(s.Links), s.FreeBytes, maxContainers, maxLinks)
	}
	for _, one := range s.Links {
		if one == nil || len(one.Node) > maxFieldBytes || !(one.BitsPerSecond > 0) ||
			math.IsInf(one.BitsPerSecond, 0) {
			return errors.New("a link has no node or no bandwidth")
		}
	}
	return checkContainers(s.Containers)
}

// checkDelta refuses a change that does not fit.
func checkDelta(d *api.Delta) error {
	if len(d.Containers) > maxContainers || len(d.Gone) > maxContainers || d.FreeBytes < 0 {
		return fmt.Errorf("change of %d containers: the limit is %d", len(d.Containers)+len(d.Gone),
			maxContainers)
	}
	return checkContainers(d.Containers)
}

func checkContainers(all []*api.NodeContainer) error {
	for _, one := range all {
		if one == nil || one.Name == "" {
			return errors.New("a container has no name")
		}
		if err := migration.CheckContainerID(one.Id); err != nil {
			return err
		}
		one.ProtoReflect().SetUnknown(nil) // it would be kept, and is not bounded
		for _, text := range []string{one.Name, one.Engine, one.Image, one.State, one.Address} {
			if len(text) > maxFieldBytes {
				return fmt.Errorf("container %.12s: a field has %d bytes; the limit is %d", one.Id, len(text),
					maxFieldBytes)
			}
		}
		if len(one.Labels) > maxLabels || one.MemoryBytes < 0 || one.MemoryBytes > 1<<50 {
			return fmt.Errorf("container %.12s has %d labels and %d bytes of memory", one.Id, len(one.Labels),
				one.MemoryBytes)
		}
		for key, value := range one.Labels {
			if len(key)+len(value) > maxLabelBytes {
				return fmt.Errorf("container %.12s has a label of %d bytes; the limit is %d", one.Id,
					len(key)+len(value), maxLabelBytes)
			}
		}
	}
	return nil
}

// take replaces what is known of a node.
func (n *liveNode) take(s *api.NodeState) {
	n.version, n.address, n.free = s.Version, s.Address, s.FreeBytes
	n.containers, n.rates = map[string]*api.NodeContainer{}, map[string]float64{}
	for _, one := range s.Containers {
		n.containers[one.Id] = one
	}
	for _, one := range s.Links {
		n.rates[one.Node] = one.BitsPerSecond
	}
}

// change applies a change. Error: there would be too many containers.
func (n *liveNode) change(d *api.Delta) error {
	for _, id := range d.Gone {
		delete(n.containers, id)
	}
	for _, one := range d.Containers {
		n.containers[one.Id] = one
	}
	if d.FreeBytes > 0 {
		n.free = d.FreeBytes
	}
	if len(n.containers) > maxContainers {
		return fmt.Errorf("the node has more than %d containers", maxContainers)
	}
	return nil
}
