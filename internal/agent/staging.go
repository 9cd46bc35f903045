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
func newStages(a *Agent) *staging.Stages {
	n := stagingNode{a}
	return staging.NewStages(a.ctx, staging.Config{
		Node: a.self.Name, Cores: a.cores, Patience: a.config.stagePatience(), Containers: n, Migrations: n,
		Links: n, Layers: a.layers, Log: a.log,
	})
}

// newStagedCopies are the copies of other nodes' containers here.
func newStagedCopies(a *Agent) *staging.Copies {
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
	return n.agent.departures.Offer(ctx, spec, of, chosen.Moved)
}

// StopMeasuring implements staging.Containers.
func (n stagingNode) StopMeasuring(container string) { n.agent.samples.Stop(container) }

// Refuse implements staging.Migrations.
func (n stagingNode) Refuse(container string) error { return n.agent.moves.Refuse(container) }

// Busy implements staging.Migrations.
func (n stagingNode) Busy() bool { return n.agent.moves.Busy() }

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
	m, err := n.agent.moves.Find(id)
	if err != nil {
		return nil, err
	}
	spec := m.Tracker.Spec
	work, ok := m.Work().(*target)
	if !ok || spec.Source != from || spec.Container != of.ID || m.Ended() {
		return nil, fmt.Errorf("migration %.40q does not bring %s from %s here", id, of.Name, from)
	}
	return work.memory.TakeStaged, nil
}

// BeginStage implements rpc.BeginsStages.
func (n stagingNode) BeginStage(ctx context.Context, request *api.StageRequest) (*staging.Stage, error) {
	settings, err := migration.StageSettings{
		Keep: seconds(request.KeepSeconds), KeepFresh: seconds(request.KeepFreshSeconds),
		BandwidthLimit: request.BandwidthLimitBitsPerSecond,
	}.Complete()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if err := n.agent.placements.Free(ctx, request.Container); err != nil {
		return nil, err
	}
	return n.start(ctx, request.Container, request.Node, settings, 0)
}

// start is BeginStage, with a copy that stays idle for that long when its connection ends.
func (n stagingNode) start(ctx context.Context, container, node string, settings migration.StageSettings,
	idle time.Duration) (*staging.Stage, error) {
	spec, definition, at, err := n.agent.departures.Specify(ctx,
		&api.MigrateRequest{Container: container, Node: node, Mode: string(migration.PreCopy)})
	if err != nil {
		return nil, err
	}
	return n.agent.stages.Begin(spec, definition, at, settings, idle)
}

// BeginLayers implements rpc.BeginsStages.
func (n stagingNode) BeginLayers(ctx context.Context, request *api.StageRequest) (*staging.Layers, error) {
	container, err := n.agent.containers.Inspect(ctx, request.Container)
	if err != nil {
		return nil, err
	}
	nodes, err := n.Candidates([]string{request.Node})
	if err != nil {
		return nil, err
	}
	return n.agent.stages.BeginLayers(container.Definition, nodes[0], request.BandwidthLimitBitsPerSecond)
}

// Candidates implements containers.Stages.
func (n stagingNode) Candidates(names []string) ([]identity.Node, error) {
	var nodes []identity.Node
	for _, name := range names {
		node, err := n.agent.peers.Find(name)
		if err != nil {
			return nil, err
		}
		if err := migration.CheckRoute(n.agent.self.Name, name); err != nil {
			return nil, fmt.Errorf("%w: %w", errRefused, err)
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// To implements containers.Stages. The container runs whether the nodes get its layers or not.
func (n stagingNode) To(definition engine.Definition, nodes []identity.Node) {
	for _, node := range nodes {
		if _, err := n.agent.stages.BeginLayers(definition, node, 0); err != nil {
			n.agent.log.Warn("layers not staged", "container", definition.Name, "node", node.Name, "error",
				err)
		}
	}
}

// Gone implements containers.Stages.
func (n stagingNode) Gone(ctx context.Context, container string) error {
	return n.agent.stages.Drop(ctx, container, staging.ErrGone)
}

// relieveEvery is how often is looked whether there is something to give up.
const relieveEvery = time.Second

// watchMemory gives up what can be made again when its time is over, and when memory, or the disk, is short.
func watchMemory(ctx context.Context, a *Agent) {
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
