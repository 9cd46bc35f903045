package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// stagingNode is what staged copies need of this node, as their source and as their target.
type stagingNode struct{ agent *Agent }

// stagePatience is how long the other node of a stage may be silent. Nobody is frozen meanwhile, so
// it is longer than in a migration.
func (c Config) stagePatience() time.Duration { return 3 * c.peerTimeout() }

// newStages are the copies of this node's containers at other nodes.
func (a *Agent) newStages() *staging.Stages {
	n := stagingNode{a}
	return staging.NewStages(a.ctx, staging.Config{
		Node: a.self.Name, Cores: a.cores, Patience: a.config.stagePatience(), Containers: n, Migrations: n,
		Links: n, Layers: a.layers, Log: a.log,
	})
}

// newStagedCopies are the copies of other nodes' containers here.
func (a *Agent) newStagedCopies() *staging.Copies {
	return staging.NewCopies(a.ctx, staging.CopiesConfig{
		Node: a.self.Name, RunDir: a.config.RunDir, Patience: a.config.stagePatience(),
		Target: stagingNode{a}, Reservations: a.reservations, Residuals: a.residuals, Log: a.log,
	})
}

// Processes implements staging.Containers.
func (n stagingNode) Processes(ctx context.Context, of engine.Definition) ([]int, error) {
	return n.agent.engines.EngineFor(of).Processes(ctx, of.ID)
}

// Running implements staging.Containers.
func (n stagingNode) Running(ctx context.Context, of engine.Definition) (bool, error) {
	container, err := n.agent.engines.EngineFor(of).Inspect(ctx, of.ID)
	if errors.Is(err, engine.ErrNotFound) {
		return false, nil
	}
	return err == nil && container.State == engine.Running, err
}

// AwaitFilled implements staging.Containers.
func (n stagingNode) AwaitFilled(ctx context.Context, of engine.Definition) error {
	return push.AwaitFilled(ctx, n.agent.engines.EngineFor(of), of.ID, of.Name)
}

// Offer implements staging.Containers.
func (n stagingNode) Offer(ctx context.Context, spec migration.Spec, of engine.Definition,
	to identity.Node) (*api.Offer, error) {
	problems, err := n.agent.engines.EngineFor(of).Examine(ctx, of.ID)
	if err != nil {
		return nil, err
	}
	chosen, err := n.agent.volumes.Choose(ctx, spec.Mode, of, to, "")
	if err != nil {
		return nil, err
	}
	if err := refuse(append(problems, chosen.Problems...)); err != nil {
		return nil, err
	}
	of.Volumes = chosen.Volumes
	return n.agent.makeOffer(ctx, spec, of, chosen.Moved)
}

// StopMeasuring implements staging.Containers.
func (n stagingNode) StopMeasuring(container string) { n.agent.samples.Stop(container) }

// Refuse implements staging.Migrations.
func (n stagingNode) Refuse(container string) error { return n.agent.moves.refuse(container) }

// Busy implements staging.Migrations.
func (n stagingNode) Busy() bool { return n.agent.moves.busy() }

// Dial implements staging.Links.
func (n stagingNode) Dial(ctx context.Context, to identity.Node, stage string,
	limiter *stream.Limiter) (*stream.Session, error) {
	conn, err := wire.Dial(ctx, n.agent.id, to.Address, to.Name)
	if err != nil {
		return nil, err
	}
	options := n.agent.streamOptions()
	options.Limiter = limiter
	data, err := stream.Open(ctx, conn, stream.Hello{Migration: stage, Purpose: purposeStage}, options)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return data, nil
}

// NoteLink implements staging.Links.
func (n stagingNode) NoteLink(node string, link stream.Link) { n.agent.peers.NoteLink(node, link) }

// Link implements staging.Links.
func (n stagingNode) Link(node string) (rtt time.Duration, bandwidth float64) {
	return n.agent.peers.Link(node)
}

// Has implements staging.Target.
func (n stagingNode) Has(container string) bool {
	_, err := n.agent.engines.Inspect(n.agent.ctx, container)
	return !errors.Is(err, engine.ErrNotFound)
}

// Free implements staging.Target.
func (n stagingNode) Free() int64 { return n.agent.admission.Free() }

// Examine implements staging.Target.
func (n stagingNode) Examine(ctx context.Context, from string, of engine.Definition,
	offer *api.Offer) ([]migration.Problem, error) {
	return n.agent.admission.Examine(ctx, from, of, offer)
}

// Missing implements staging.Target.
func (n stagingNode) Missing(ctx context.Context, of engine.Definition,
	problems []migration.Problem) (*api.Reservation, error) {
	return n.agent.admission.Missing(ctx, of, problems)
}

// Migration implements staging.Target.
func (n stagingNode) Migration(id, from string, of engine.Definition) (take func(*memory.Store) error,
	err error) {
	m, err := n.agent.moves.find(id)
	if err != nil {
		return nil, err
	}
	spec := m.tracker.Spec
	work, ok := m.work().(*target)
	if !ok || spec.Source != from || spec.Container != of.ID || m.ended() {
		return nil, fmt.Errorf("migration %.40q does not bring %s from %s here", id, of.Name, from)
	}
	return work.memory.TakeStaged, nil
}

// beginStage begins to make the copy that a user wants, or brings the one that is there up to date.
func (a *Agent) beginStage(ctx context.Context, request *api.StageRequest) (*staging.Stage, error) {
	settings, err := migration.StageSettings{
		Keep: seconds(request.KeepSeconds), KeepFresh: seconds(request.KeepFreshSeconds),
		BandwidthLimit: request.BandwidthLimitBitsPerSecond,
	}.Complete()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if err := a.placements.Free(ctx, request.Container); err != nil {
		return nil, err
	}
	return a.startStage(ctx, request.Container, request.Node, settings, 0)
}

// startStage is beginStage, with a copy that stays idle for that long when its connection ends.
func (a *Agent) startStage(ctx context.Context, container, node string, settings migration.StageSettings,
	idle time.Duration) (*staging.Stage, error) {
	spec, definition, at, err := a.specify(ctx,
		&api.MigrateRequest{Container: container, Node: node, Mode: string(migration.PreCopy)})
	if err != nil {
		return nil, err
	}
	return a.stages.Begin(spec, definition, at, settings, idle)
}

// relieveEvery is how often is looked whether there is something to give up.
const relieveEvery = time.Second

// watchMemory gives up what can be made again when its time is over, and when memory, or the disk, is short.
func (a *Agent) watchMemory(ctx context.Context) {
	tick := time.NewTicker(relieveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.residuals.Expire(now)
			a.kept.Expire(now)
			a.engines.LetGo()
			a.stagedCopies.Relieve()
		}
	}
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
		if _, err := a.stages.BeginLayers(definition, node, 0); err != nil {
			a.log.Warn("layers not staged", "container", definition.Name, "node", node.Name, "error", err)
		}
	}
}
