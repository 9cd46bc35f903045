package agent

import (
	"time"

	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
)

// forecaster makes forecasts of migrations from this node.
func (a *Agent) forecaster() *forecast.Forecaster {
	return forecast.New(forecast.Config{
		Node: a.self.Name, Engines: a.engines, Samples: a.samples, Links: a.links,
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
