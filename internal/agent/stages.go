package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// keepStages is how many stages that have ended are remembered, so that a user can see why.
const keepStages = 16

// stages are the copies of containers of this node that are made at other nodes ahead of a
// migration: at most one of a container, because there is one tracker of its memory.
type stages struct {
	agent *Agent

	mu     sync.Mutex
	live   map[string]*stage    // by container
	layers map[*layerStage]bool // that are under way, of layers only
	ended  []migration.Stage
	over   bool // no more begin
}

func newStages(agent *Agent) *stages {
	return &stages{agent: agent, live: map[string]*stage{}, layers: map[*layerStage]bool{}}
}

// errStageNone says that there is no such copy.
type errStageNone struct{ container, node string }

func (e errStageNone) Error() string {
	return fmt.Sprintf("nothing of %s is staged at or from %s; \"godwit stage ls\" lists what is",
		e.container, e.node)
}

// Is makes it one of the things that are not found.
func (e errStageNone) Is(target error) bool { return target == engine.ErrNotFound }

// begin begins to make a copy of a container at a node, or brings the one that is there up to date.
func (s *stages) begin(ctx context.Context, request *api.StageRequest) (*stage, error) {
	settings, err := migration.StageSettings{
		Keep: seconds(request.KeepSeconds), KeepFresh: seconds(request.KeepFreshSeconds),
		BandwidthLimit: request.BandwidthLimitBitsPerSecond,
	}.Complete()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if err := s.agent.placementFree(ctx, request.Container); err != nil {
		return nil, err
	}
	return s.start(ctx, request.Container, request.Node, settings, 0)
}

// start is begin, with a copy that stays idle for that long when its connection ends.
func (s *stages) start(ctx context.Context, container, node string, settings migration.StageSettings,
	idle time.Duration) (*stage, error) {
	spec, definition, at, err := s.agent.specify(ctx,
		&api.MigrateRequest{Container: container, Node: node, Mode: string(migration.PreCopy)})
	if err != nil {
		return nil, err
	}
	added := newStage(s.agent, spec, definition, at)
	added.idle = idle
	g, again, err := s.add(added)
	if err != nil {
		return nil, err
	}
	g.choose(settings)
	if again {
		g.refresh()
		return g, nil
	}
	s.agent.samples.Stop(definition.ID) // whoever begins to measure it now sees this stage
	go g.agent.guarded(g.run)()
	return g, nil
}

// add begins to know a stage, or finds the one that is there already.
func (s *stages) add(added *stage) (g *stage, again bool, err error) {
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
		return nil, false, fmt.Errorf("%w: the agent of %s ends", engine.ErrBusy, s.agent.self.Name)
	}
	if err := s.agent.moves.refuse(container); err != nil { // one that begins later finds this stage
		return nil, false, err
	}
	s.live[container] = added
	return added, false, nil
}

// forget is called by a stage that has ended.
func (s *stages) forget(g *stage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[g.definition.ID] == g {
		delete(s.live, g.definition.ID)
	}
	if errors.Is(context.Cause(g.ctx), errStageIdle) {
		return // it is there, and its policy tells of it
	}
	s.ended = append(s.ended, g.describe())
	s.ended = s.ended[max(0, len(s.ended)-keepStages):]
}

func (s *stages) of(container string) *stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[container]
}

// find finds one by what a user calls the container, and the node where the copy is.
func (s *stages) find(container, node string) (*stage, error) {
	for _, g := range s.all() {
		if g.node.Name == node && migration.Called(container, g.definition.ID, g.definition.Name) {
			return g, nil
		}
	}
	return nil, errStageNone{container, node}
}

func (s *stages) all() []*stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*stage, 0, len(s.live))
	for _, g := range s.live {
		all = append(all, g)
	}
	return all
}

// drop ends the stage of a container, if there is one, and returns when nothing of it is left in
// its processes.
func (s *stages) drop(ctx context.Context, container string, why error) error {
	g := s.of(container)
	if g == nil {
		return nil
	}
	g.cancel(why)
	return waitFor(ctx, g.done)
}

// close ends all stages, because the agent ends.
func (s *stages) close() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	for _, g := range s.all() {
		g.cancel(errors.New("the agent of " + s.agent.self.Name + " ended"))
	}
	for _, g := range s.all() {
		<-g.done
	}
}

// list describes all, those that have ended last.
func (s *stages) list() []migration.Stage {
	var list []migration.Stage
	for _, g := range s.all() {
		list = append(list, g.describe())
	}
	list = append(list, s.layersStaged()...)
	slices.SortFunc(list, func(a, b migration.Stage) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), a.Started.Compare(b.Started))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(list, s.ended...)
}

// strike takes those off the list that have ended, of a container at a node; false: there are none.
func (s *stages) strike(container, node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.ended)
	s.ended = slices.DeleteFunc(s.ended, func(one migration.Stage) bool {
		return one.Target == node && migration.Called(container, one.ContainerID, one.Container)
	})
	return len(s.ended) < before
}

// stageTick is how often is looked whether a staged container still runs, and whether it is time to
// send something.
const stageTick = time.Second
