package staging

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Layers brings the layers of a container's image to a node to which it may go. They stay there
// like any others, so there is nothing to keep or to end.
type Layers struct {
	owner      *Stages
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

// maxLayers bounds those that are under way at a time.
const maxLayers = 64

// BeginLayers begins to bring the layers of a container's image to a node.
func (s *Stages) BeginLayers(definition engine.Definition, node identity.Node, rate float64) (*Layers,
	error) {
	l := &Layers{
		owner: s, definition: definition, node: node, rate: rate, done: make(chan struct{}),
		told: migration.Stage{
			ID: newID(), Kind: migration.LayersCopy, Container: definition.Name,
			ContainerID: definition.ID, Source: s.node,
			Target: node.Name, State: migration.StageLayers, Started: time.Now().UTC(),
		},
	}
	l.ctx, l.cancel = context.WithCancelCause(s.ctx)
	l.limiter.SetRate(rate)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || len(s.layers) >= maxLayers {
		return nil, fmt.Errorf("%w: the layers of %d containers are just being staged", engine.ErrBusy,
			len(s.layers))
	}
	s.layers[l] = true
	go guard.Logged(s.log, l.run)()
	return l, nil
}

func (l *Layers) run() {
	defer close(l.done)
	err := guard.Do(func() error { return l.work(l.ctx) })
	guard.LogPanic(l.owner.log, err)
	if cause := context.Cause(l.ctx); err != nil && cause != nil {
		err = cause
	}
	l.cancel(nil)
	l.mu.Lock()
	l.told.State, l.told.Error = migration.StageReady, ""
	if err != nil {
		l.told.State, l.told.Error = migration.StageEnded, api.Plain(err)
	}
	told := l.told
	l.mu.Unlock()
	l.owner.forgetLayers(l)
	l.owner.log.Info("layers staged", "container", told.Container, "node", told.Target, "layers",
		l.brought().String(), "error", err)
}

func (l *Layers) work(ctx context.Context) error {
	outgoing := &layers.Transfer{ID: l.told.ID, Node: l.node.Name, Limiter: &l.limiter,
		Sent: func(bytes int64) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told.SentBytes += bytes
		}}
	_, bandwidth := l.owner.links.Link(l.node.Name)
	if l.rate > 0 && (bandwidth == 0 || l.rate < bandwidth) {
		bandwidth = l.rate
	}
	_, err := l.owner.bringer.Bring(ctx, layers.Bringing{
		Node: l.node, Container: l.definition, Transfer: outgoing, Bandwidth: bandwidth,
		Progress: func(layers migration.Layers) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.layers = layers
		},
	})
	return err
}

// Done is closed when all layers are there, or cannot be brought.
func (l *Layers) Done() <-chan struct{} { return l.done }

// Describe tells how far it is.
func (l *Layers) Describe() migration.Stage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

func (l *Layers) brought() migration.Layers {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.layers
}

// forgetLayers is called when all are there, or cannot be brought.
func (s *Stages) forgetLayers(l *Layers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.layers, l)
	s.ended = append(s.ended, l.Describe())
	s.ended = s.ended[max(0, len(s.ended)-keepStages):]
}

// layersStaged describes those that are under way.
func (s *Stages) layersStaged() []migration.Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []migration.Stage
	for l := range s.layers {
		list = append(list, l.Describe())
	}
	return list
}

// DropLayers ends those of a container at a node that are under way, and tells whether there were
// any. Layers that are whole stay.
func (s *Stages) DropLayers(ctx context.Context, container, node string, why error) (dropped bool,
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

func (s *Stages) layersOf(container, node string) (found []*Layers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.layers {
		if l.node.Name == node && migration.Called(container, l.definition.ID, l.definition.Name) {
			found = append(found, l)
		}
	}
	return found
}

func newID() string {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	return hex.EncodeToString(id)
}
