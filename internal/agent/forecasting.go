package agent

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// forecaster makes forecasts of migrations from this node.
func (a *Agent) forecaster() *forecast.Forecaster {
	return forecast.New(forecast.Config{
		Node: a.self.Name, Engines: a.engines, Samples: a.samples, Links: measuredLinks{a},
		Past: a.experience, Speed: a.machine.Predicted, Trees: a.volumes.Trees, CopyAge: a.copyAge,
	})
}

// copyAge is the age of the staged copy of a container at a node; 0: there is none that is whole.
func (a *Agent) copyAge(container, node string) time.Duration {
	if g := a.stages.Of(container); g != nil && g.Target() == node {
		if told := g.Describe(); told.State == migration.StageReady {
			return max(time.Since(told.Fresh), time.Nanosecond)
		}
		return 0
	}
	return a.placements.AgeAt(container, node)
}

// measuredLinks are the links from this node, which can be measured.
type measuredLinks struct{ agent *Agent }

// WayTo implements forecast.Links and controller.Links.
func (l measuredLinks) WayTo(node string) predict.Link { return l.agent.peers.WayTo(node) }

// Link implements controller.Links.
func (l measuredLinks) Link(node string) (rtt time.Duration, bandwidth float64) {
	return l.agent.peers.Link(node)
}

// Measure implements forecast.Links and controller.Links.
func (l measuredLinks) Measure(ctx context.Context, node identity.Node) error {
	return l.agent.measure(ctx, node, measureBudget())
}

// MeasureBriefly implements forecast.Links.
func (l measuredLinks) MeasureBriefly(ctx context.Context, node identity.Node, memory int64) error {
	return l.agent.measure(ctx, node, choiceBudget(memory))
}
