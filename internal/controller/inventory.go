package controller

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// Bounds of each thing that an agent says; bounds.node has those of all together.
const (
	maxLabels     = 16
	maxLabelBytes = 1024
	maxFieldBytes = 512
)

// said is how much a node tells.
type said struct{ containers, links, bytes int }

// inventory is what a node tells.
type inventory struct {
	version    string
	address    string
	free       int64
	containers map[string]*api.NodeContainer // by id
	rates      map[string]float64            // bits per second, by the other node's name
	bytes      int                           // of the containers

	// sorted are the containers that run, in order of id; nil: they have changed. Thousands of nodes are
	// looked at for each decision, and few have changed.
	sorted []*api.NodeContainer
	// places counts the containers that run; nil: the node is not known to the cluster yet.
	places *places
}

// places counts at how many nodes a container runs, as these nodes say.
type places struct {
	nodes   map[string]int
	several map[string]bool // containers that run at more than one
}

func newPlaces() *places { return &places{map[string]int{}, map[string]bool{}} }

func (p *places) add(id string, by int) {
	p.nodes[id] += by
	switch p.nodes[id] {
	case 0:
		delete(p.nodes, id)
	case 1:
		delete(p.several, id)
	default:
		p.several[id] = true
	}
}

// count makes the containers that run count, or no longer count.
func (n *inventory) count(in *places) {
	for id, one := range n.containers {
		if one.State != running {
			continue
		}
		if n.places != nil {
			n.places.add(id, -1)
		}
		if in != nil {
			in.add(id, 1)
		}
	}
	n.places = in
}

// runs returns the containers that run, in order of id.
func (n *inventory) runs() []*api.NodeContainer {
	if n.sorted == nil {
		n.sorted = []*api.NodeContainer{}
		for _, id := range slices.Sorted(maps.Keys(n.containers)) {
			if one := n.containers[id]; one.State == running {
				n.sorted = append(n.sorted, one)
			}
		}
	}
	return n.sorted
}

// checkState refuses a node's state that does not fit.
func checkState(s *api.NodeState) error {
	if s == nil {
		return errors.New("the first message of an agent has no state")
	}
	if s.FreeBytes < 0 || len(s.Version) > maxFieldBytes || len(s.Address) > maxFieldBytes {
		return fmt.Errorf("state with %d free bytes, a version of %d bytes and an address of %d: the limit "+
			"is %d", s.FreeBytes, len(s.Version), len(s.Address), maxFieldBytes)
	}
	return errors.Join(checkLinks(s.Links), checkContainers(s.Containers))
}

// checkDelta refuses a change that does not fit.
func checkDelta(d *api.Delta) error {
	if d.FreeBytes < 0 {
		return fmt.Errorf("change with %d free bytes", d.FreeBytes)
	}
	return errors.Join(checkLinks(d.Links), checkContainers(d.Containers))
}

func checkLinks(all []*api.NodeLink) error {
	for _, one := range all {
		if one == nil || len(one.Node) > maxFieldBytes || !(one.BitsPerSecond > 0) ||
			math.IsInf(one.BitsPerSecond, 0) {
			return errors.New("a link has no node or no bandwidth")
		}
	}
	return nil
}

func checkContainers(all []*api.NodeContainer) error {
	for _, one := range all {
		if one == nil || one.Name == "" {
			return errors.New("a container has no name")
		}
		if err := migration.CheckContainerID(one.Id); err != nil {
			return err
		}
		one.ProtoReflect().SetUnknown(nil) // it would be kept
		for _, text := range []string{one.Name, one.Engine, one.Image, one.State, one.Address} {
			if len(text) > maxFieldBytes {
				return fmt.Errorf("container %.12s: a field has %d bytes; the limit is %d", one.Id, len(text),
					maxFieldBytes)
			}
		}
		if len(one.Labels) > maxLabels || one.MemoryBytes < 0 || one.MemoryBytes > 1<<50 {
			return fmt.Errorf("container %.12s has %d labels and %d bytes of memory; the limit is %d labels",
				one.Id, len(one.Labels), one.MemoryBytes, maxLabels)
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

// take replaces what is known of a node. The rest of a state that comes in parts is added by change.
func (n *inventory) take(s *api.NodeState) {
	*n = inventory{
		version: s.Version, address: s.Address, free: s.FreeBytes,
		containers: map[string]*api.NodeContainer{}, rates: map[string]float64{},
	}
	n.change(&api.Delta{Containers: s.Containers, Links: s.Links})
}

// change applies a change.
func (n *inventory) change(d *api.Delta) {
	for _, id := range d.Gone {
		n.forget(id)
	}
	for _, one := range d.Containers {
		n.forget(one.Id)
		n.containers[one.Id], n.sorted = one, nil
		n.bytes += proto.Size(one)
		if n.places != nil && one.State == running {
			n.places.add(one.Id, 1)
		}
	}
	for _, one := range d.Links {
		n.rates[one.Node] = one.BitsPerSecond
	}
	if d.FreeBytes > 0 {
		n.free = d.FreeBytes
	}
}

// forget removes a container.
func (n *inventory) forget(id string) {
	if one := n.containers[id]; one != nil {
		n.bytes -= proto.Size(one)
		delete(n.containers, id)
		n.sorted = nil
		if n.places != nil && one.State == running {
			n.places.add(id, -1)
		}
	}
}

// within returns an error if the node tells more than the controller keeps of one node.
func (n *inventory) within(most said) error {
	if len(n.containers) <= most.containers && len(n.rates) <= most.links && n.bytes <= most.bytes {
		return nil
	}
	return fmt.Errorf("the node tells of %d containers in %d KiB and of %d links; the limits are %d, %d KiB "+
		"and %d", len(n.containers), n.bytes>>10, len(n.rates), most.containers, most.bytes>>10, most.links)
}
