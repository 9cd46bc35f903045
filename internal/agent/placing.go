package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement/controller"
)

// placingNode is this node as placement policies see it.
type placingNode struct{ agent *Agent }

// openPlacements reads the placement policies of this node's containers.
func openPlacements(a *Agent) (*controller.Controller, error) {
	n := placingNode{a}
	return controller.Open(a.ctx, controller.Config{
		Dir: filepath.Join(a.config.StateDir, "ahead"), Node: a.self.Name, Containers: n, Migrations: n,
		Stages: n, Nodes: a.peers, Links: a.links, Samples: a.samples, Layers: a.layers,
		Speed: a.machine.Predicted, CallTimeout: a.config.callTimeout(), Log: a.log,
	})
}

// Inspect implements controller.Containers.
func (n placingNode) Inspect(ctx context.Context, reference string) (engine.Container, error) {
	return n.agent.engines.Inspect(ctx, reference)
}

// Find implements controller.Containers.
func (n placingNode) Find(ctx context.Context, reference string) (engine.Container, error) {
	return n.agent.containers.Inspect(ctx, reference)
}

// Idle implements controller.Containers.
func (n placingNode) Idle(ctx context.Context, reference string) (engine.Container, error) {
	return n.agent.containers.Idle(ctx, reference)
}

// MemoryBytes implements controller.Containers.
func (n placingNode) MemoryBytes(ctx context.Context, container string) (int64, error) {
	return n.agent.admission.MemoryOf(ctx, container)
}

// Busy implements controller.Migrations.
func (n placingNode) Busy() bool { return n.agent.moves.Busy() }

// Moving implements controller.Migrations.
func (n placingNode) Moving(container string) bool { return n.agent.moves.Moving(container) }

// BroughtBy implements controller.Migrations.
func (n placingNode) BroughtBy(container string) *controller.Arrival {
	brought := n.agent.moves.BroughtBy(container)
	if brought == nil {
		return nil
	}
	spec := brought.Tracker.Spec
	return &controller.Arrival{Migration: spec.ID, Source: spec.Source, Dir: n.agent.moves.Dir(spec.ID),
		Lock: brought.PolicyLock()}
}

// Begin implements controller.Stages.
func (n placingNode) Begin(ctx context.Context, container, node string, settings migration.StageSettings,
	idle time.Duration) (controller.Live, error) {
	g, err := stagingNode(n).start(ctx, container, node, settings, idle)
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Target implements controller.Stages.
func (n placingNode) Target(container string) string {
	if g := n.agent.stages.Of(container); g != nil {
		return g.Target()
	}
	return ""
}
