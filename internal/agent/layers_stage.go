package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// layerStage brings the layers of a container's image to a node to which it may go. They stay there
// like any others, so there is nothing to keep or to end.
type layerStage struct {
	agent      *Agent
	definition engine.Definition
	node       identity.Node
	limiter    stream.Limiter
	rate       float64

	ctx    context.Context //nolint:containedctx // Its own life: it outlives the call that begins it.
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu     sync.Mutex
	told   migration.Stage
	layers migration.Layers
}

// maxLayerStages bounds those that are under way at a time.
const maxLayerStages = 64

// beginLayers begins to bring the layers of a container's image to a node.
func (s *stages) beginLayers(definition engine.Definition, node identity.Node, rate float64) (*layerStage,
	error) {
	l := &layerStage{
		agent: s.agent, definition: definition, node: node, rate: rate, done: make(chan struct{}),
		told: migration.Stage{
			ID: randomHex(8), Kind: migration.LayersCopy, Container: definition.Name,
			ContainerID: definition.ID, Source: s.agent.self.Name,
			Target: node.Name, State: migration.StageLayers, Started: time.Now().UTC(),
		},
	}
	l.ctx, l.cancel = context.WithCancelCause(s.agent.ctx)
	l.limiter.SetRate(rate)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || len(s.layers) >= maxLayerStages {
		return nil, fmt.Errorf("%w: the layers of %d containers are just being staged", engine.ErrBusy,
			len(s.layers))
	}
	s.layers[l] = true
	go l.agent.guarded(l.run)()
	return l, nil
}

func (l *layerStage) run() {
	defer close(l.done)
	err := guard.Do(func() error { return l.work(l.ctx) })
	l.agent.logPanic(err)
	if cause := context.Cause(l.ctx); err != nil && cause != nil {
		err = cause
	}
	l.cancel(nil)
	l.mu.Lock()
	l.told.State, l.told.Error = migration.StageReady, ""
	if err != nil {
		l.told.State, l.told.Error = migration.StageEnded, plain(err)
	}
	told := l.told
	l.mu.Unlock()
	l.agent.stages.forgetLayers(l)
	l.agent.log.Info("layers staged", "container", told.Container, "node", told.Target, "layers",
		l.brought().String(), "error", err)
}

func (l *layerStage) work(ctx context.Context) error {
	outgoing := &layers.Transfer{ID: l.told.ID, Node: l.node.Name, Limiter: &l.limiter,
		Sent: func(bytes int64) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told.SentBytes += bytes
		}}
	_, bandwidth := l.agent.peers.Link(l.node.Name)
	if l.rate > 0 && (bandwidth == 0 || l.rate < bandwidth) {
		bandwidth = l.rate
	}
	_, err := l.agent.layers.Bring(ctx, layers.Bringing{
		Node: l.node, Container: l.definition, Transfer: outgoing, Bandwidth: bandwidth,
		Progress: func(layers migration.Layers) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.layers = layers
		},
	})
	return err
}

func (l *layerStage) describe() migration.Stage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

func (l *layerStage) brought() migration.Layers {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.layers
}

// forgetLayers is called when all are there, or cannot be brought.
func (s *stages) forgetLayers(l *layerStage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.layers, l)
	s.ended = append(s.ended, l.describe())
	s.ended = s.ended[max(0, len(s.ended)-keepStages):]
}

// layersStaged describes those that are under way.
func (s *stages) layersStaged() []migration.Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []migration.Stage
	for l := range s.layers {
		list = append(list, l.describe())
	}
	return list
}

// dropLayers ends those of a container at a node that are under way, and tells whether there were
// any. Layers that are whole stay.
func (s *stages) dropLayers(ctx context.Context, container, node string, why error) (dropped bool,
	err error) {
	for _, l := range s.layersOf(container, node) {
		l.cancel(why)
		if err := waitFor(ctx, l.done); err != nil {
			return true, err
		}
		dropped = true
	}
	return dropped, nil
}

func (s *stages) layersOf(container, node string) (found []*layerStage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.layers {
		if l.node.Name == node && migration.Called(container, l.definition.ID, l.definition.Name) {
			found = append(found, l)
		}
	}
	return found
}

// candidates finds the nodes that a user named as ones to which a container may go.
func (a *Agent) candidates(names []string) ([]identity.Node, error) {
	var nodes []identity.Node
	for _, name := range names {
		node, err := a.peers.Find(name)
		if err != nil {
			return nil, err
		}
		if err := migration.CheckRoute(a.self.Name, name); err != nil {
			return nil, fmt.Errorf("%w: %w", errRefused, err)
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// stageTo begins to bring the layers of a container that was just started to nodes to which it may
// go. It runs whether they get them or not.
func (a *Agent) stageTo(definition engine.Definition, nodes []identity.Node) {
	for _, node := range nodes {
		if _, err := a.stages.beginLayers(definition, node, 0); err != nil {
			a.log.Warn("layers not staged", "container", definition.Name, "node", node.Name, "error", err)
		}
	}
}
