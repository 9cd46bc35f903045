package staging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// keepStages is how many stages that have ended are remembered, so that a user can see why.
const keepStages = 16

// Stages are the copies of containers of this node that are made at other nodes ahead of a migration: at most
// one of a container, because there is one tracker of its memory.
type Stages struct {
	ctx        context.Context //nolint:containedctx // The life of the node: stages outlive calls.
	node       string
	cores      int
	patience   time.Duration
	tick       time.Duration
	containers Containers
	migrations Migrations
	links      Links
	bringer    Bringer
	track      func(memory.SourceConfig) tracker
	log        *slog.Logger

	mu     sync.Mutex
	live   map[string]*Stage // by container
	layers map[*Layers]bool  // that are under way, of layers only
	ended  []migration.Stage
	over   bool // no more begin
}

// Config is what stages need of the node where the containers run.
type Config struct {
	Node       string // its name
	Cores      int
	Patience   time.Duration // how long another node may be silent
	Containers Containers
	Migrations Migrations
	Links      Links
	Layers     Bringer
	Log        *slog.Logger
}

// Containers are those of this node.
type Containers interface {
	Processes(ctx context.Context, of engine.Definition) ([]int, error)
	Running(ctx context.Context, of engine.Definition) (bool, error)
	// AwaitFilled waits until memory that is still being filled after the last move is complete.
	AwaitFilled(ctx context.Context, of engine.Definition) error
	// Offer describes a container that may go to a node; what stands against that is an error.
	Offer(ctx context.Context, spec migration.Spec, of engine.Definition,
		to identity.Node) (*api.Offer, error)
	// StopMeasuring ends the watching of a container, which needs the only tracker.
	StopMeasuring(container string)
}

// Migrations are those of this node.
type Migrations interface {
	// Refuse says why nothing else may be done with a container now; nil: it may.
	Refuse(container string) error
	// Busy reports whether there is one: copies are kept fresh when there is none.
	Busy() bool
}

// Links are those to other nodes.
type Links interface {
	// Dial makes a connection for a stage, which ends in Copies.Serve.
	Dial(ctx context.Context, to identity.Node, stage string,
		limiter *stream.Limiter) (*stream.Session, error)
	NoteLink(node string, link stream.Link)
	Link(node string) (rtt time.Duration, bandwidth float64)
}

// Bringer has other nodes get images. See layers.Mover.
type Bringer interface {
	Bring(ctx context.Context, b layers.Bringing) (migration.Layers, error)
}

// tick is how often is looked whether a staged container still runs, and whether it is time to send
// something.
const tick = time.Second

// NewStages has no stages yet. Those that begin end with ctx, or by Close.
func NewStages(ctx context.Context, c Config) *Stages {
	return &Stages{
		ctx: ctx, node: c.Node, cores: c.Cores, patience: c.Patience, tick: tick, containers: c.Containers,
		migrations: c.Migrations, links: c.Links, bringer: c.Layers, log: c.Log,
		track: func(config memory.SourceConfig) tracker { return memory.NewSource(config) },
		live:  map[string]*Stage{}, layers: map[*Layers]bool{},
	}
}

// NotStaged says that there is no such copy.
type NotStaged struct{ Container, Node string }

func (e NotStaged) Error() string {
	return fmt.Sprintf("nothing of %s is staged at or from %s; \"godwit stage ls\" lists what is",
		e.Container, e.Node)
}

// Is makes it one of the things that are not found.
func (e NotStaged) Is(target error) bool { return target == engine.ErrNotFound }

// Begin begins to make a copy of a container at a node, or brings the one that is there up to date. The copy
// stays idle for that long when its connection ends; 0: not at all.
func (s *Stages) Begin(spec migration.Spec, definition engine.Definition, at identity.Node,
	settings migration.StageSettings, idle time.Duration) (*Stage, error) {
	added := newStage(s, spec, definition, at)
	added.idle = idle
	g, again, err := s.add(added)
	if err != nil {
		return nil, err
	}
	g.choose(settings)
	if again {
		g.Refresh()
		return g, nil
	}
	s.containers.StopMeasuring(definition.ID) // whoever begins to measure it now sees this stage
	go guard.Logged(s.log, g.run)()
	return g, nil
}

// add begins to know a stage, or finds the one that is there already.
func (s *Stages) add(added *Stage) (g *Stage, again bool, err error) {
	container := added.definition.ID
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.live[container]; have != nil {
		if have.node.Name == added.node.Name {
			return have, true, nil
		}
		return nil, false,
			fmt.Errorf("%w: %s is staged at %s, and at one node only at a time: \"godwit stage rm %s %s\" "+
				"first",
				engine.ErrBusy, added.definition.Name, have.node.Name, added.definition.Name, have.node.Name)
	}
	if s.over {
		return nil, false, fmt.Errorf("%w: the agent of %s ends", engine.ErrBusy, s.node)
	}
	if err := s.migrations.Refuse(container); err != nil { // one that begins later finds this stage
		return nil, false, err
	}
	s.live[container] = added
	return added, false, nil
}

// forget is called by a stage that has ended.
func (s *Stages) forget(g *Stage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[g.definition.ID] == g {
		delete(s.live, g.definition.ID)
	}
	if errors.Is(context.Cause(g.ctx), ErrIdle) {
		return // it is there, and its policy tells of it
	}
	s.ended = append(s.ended, g.Describe())
	s.ended = s.ended[max(0, len(s.ended)-keepStages):]
}

// Of is the stage of a container; nil: there is none.
func (s *Stages) Of(container string) *Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[container]
}

// Find finds one by what a user calls the container, and the node where the copy is.
func (s *Stages) Find(container, node string) (*Stage, error) {
	for _, g := range s.all() {
		if g.node.Name == node && migration.Called(container, g.definition.ID, g.definition.Name) {
			return g, nil
		}
	}
	return nil, NotStaged{container, node}
}

func (s *Stages) all() []*Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Stage, 0, len(s.live))
	for _, g := range s.live {
		all = append(all, g)
	}
	return all
}

// Drop ends the stage of a container, if there is one, and returns when nothing of it is left in
// its processes.
func (s *Stages) Drop(ctx context.Context, container string, why error) error {
	g := s.Of(container)
	if g == nil {
		return nil
	}
	g.cancel(why)
	return waitFor(ctx, g.done)
}

// Close ends all stages, because the agent ends.
func (s *Stages) Close() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	for _, g := range s.all() {
		g.cancel(errors.New("the agent of " + s.node + " ended"))
	}
	for _, g := range s.all() {
		<-g.done
	}
}

// List describes all, those that have ended last.
func (s *Stages) List() []migration.Stage {
	var list []migration.Stage
	for _, g := range s.all() {
		list = append(list, g.Describe())
	}
	list = append(list, s.layersStaged()...)
	slices.SortFunc(list, func(a, b migration.Stage) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), a.Started.Compare(b.Started))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(list, s.ended...)
}

// Strike takes those off the list that have ended, of a container at a node; false: there are none.
func (s *Stages) Strike(container, node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.ended)
	s.ended = slices.DeleteFunc(s.ended, func(one migration.Stage) bool {
		return one.Target == node && migration.Called(container, one.ContainerID, one.Container)
	})
	return len(s.ended) < before
}
