package uplink

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// Agent is what the state of a node is made of.
type Agent interface {
	// Containers lists the containers; fresh: not from a list that may be seconds old.
	Containers(ctx context.Context, fresh bool) ([]engine.Container, error)
	// Moving returns the ids of containers that migrations have to do with.
	Moving() map[string]bool
	// Memory measures the memory of a container that would travel.
	Memory(ctx context.Context, id string) (int64, error)
	// Nodes describes the nodes, and the links to them.
	Nodes() []*api.Node
}

const (
	// sizeGoodFor is how long a container's size is not measured again: that reads of all its processes.
	sizeGoodFor = 30 * time.Second
	// Labels with this prefix are for the controller.
	labelPrefix   = "godwit."
	maxLabels     = 16
	maxLabelBytes = 1024
	maxFieldBytes = 512 // of other texts, which are for people
)

// described makes the state of a node from what its agent knows.
type described struct {
	agent Agent
	mu    sync.Mutex
	sizes map[string]size // by container id
}

// size is the memory of a container at a time.
type size struct {
	bytes int64
	at    time.Time
}

// state describes the node.
func (d *described) state(ctx context.Context, fresh bool, now time.Time) (*api.NodeState, error) {
	containers, err := d.agent.Containers(ctx, fresh)
	if err != nil {
		return nil, err
	}
	free, err := kernel.MemoryAvailable()
	if err != nil {
		return nil, err
	}
	state := &api.NodeState{FreeBytes: free}
	moving := d.agent.Moving()
	d.mu.Lock()
	defer d.mu.Unlock()
	sizes := map[string]size{}
	for _, one := range containers {
		told := describe(one)
		told.Moving = moving[told.Id]
		if one.State == engine.Running {
			sizes[told.Id] = d.measure(ctx, told.Id, now)
			told.MemoryBytes = sizes[told.Id].bytes
		}
		state.Containers = append(state.Containers, told)
	}
	d.sizes = sizes
	for _, node := range d.agent.Nodes() {
		switch {
		case node.Self:
			state.Version, state.Address = node.Version, node.Address
		case node.BandwidthBitsPerSecond > 0:
			state.Links = append(state.Links, &api.NodeLink{Node: node.Name,
				BitsPerSecond: node.BandwidthBitsPerSecond, RttSeconds: node.RttSeconds})
		}
	}
	return state, nil
}

// measure returns the size of a container, 0 bytes if it cannot be measured.
func (d *described) measure(ctx context.Context, id string, now time.Time) size {
	if known, found := d.sizes[id]; found && now.Sub(known.at) < sizeGoodFor {
		return known
	}
	bytes, err := d.agent.Memory(ctx, id)
	if err != nil {
		bytes = 0
	}
	return size{bytes, now}
}

// cut bounds a text. The controller would refuse a longer one, and with it the node.
func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxFieldBytes)], "")
}

func describe(one engine.Container) *api.NodeContainer {
	d := one.Definition
	told := &api.NodeContainer{
		Id: d.ID, Name: cut(d.Name), Engine: d.EngineName, Image: cut(d.Image), State: string(one.State),
		Labels: map[string]string{},
	}
	if d.Network.Address.IsValid() {
		told.Address = d.Network.Address.String()
	}
	for key, value := range d.Labels {
		if strings.HasPrefix(key, labelPrefix) && len(key)+len(value) <= maxLabelBytes &&
			len(told.Labels) < maxLabels {
			told.Labels[key] = value
		}
	}
	return told
}
