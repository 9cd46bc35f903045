package agent

import (
	"context"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/predict"
)

const (
	// topAge is how old what Top tells may be.
	topAge = 5 * time.Second
	// mostWindow bounds for how long anybody waits for a window of the dirtying curve.
	mostWindow = time.Minute
)

// Top measures the containers that run.
func (s *localService) Top(ctx context.Context, request *api.TopRequest) (*api.TopReply, error) {
	containers, err := s.agent.running(ctx, request.Container)
	if err != nil {
		return nil, wireError(err)
	}
	window := min(max(seconds(request.WindowSeconds), seconds(predict.Windows()[0])), mostWindow)
	measured := make([]predict.Measured, len(containers))
	var all sync.WaitGroup
	for i, container := range containers {
		all.Go(s.agent.guarded(func() {
			s.agent.samples.Watch(container.Definition) // who looks again and again is told what is new
			measured[i] = s.agent.measured(ctx, container, window, topAge)
		}))
	}
	all.Wait()
	documents, err := marshalEach(measured)
	return &api.TopReply{MeasuredJson: documents}, wireError(err)
}

// running are the containers that run, or the one that is named.
func (a *Agent) running(ctx context.Context, reference string) ([]engine.Container, error) {
	if reference != "" {
		container, err := a.inspect(ctx, reference)
		return []engine.Container{container}, err
	}
	all, err := a.engines.ListAnswered(ctx)
	if err != nil {
		return nil, err
	}
	var running []engine.Container
	for _, container := range all {
		if container.State == engine.Running {
			running = append(running, container)
		}
	}
	return running, nil
}

// measured is what is known of a container. One that does not run, or is being moved, is not measured now.
func (a *Agent) measured(ctx context.Context, container engine.Container, window,
	age time.Duration) predict.Measured {
	definition := container.Definition
	if container.State == engine.Running && !a.moves.moving(definition.ID) {
		measured := a.samples.Measure(ctx, definition, window, age)
		if measured.ID != "" {
			return measured
		}
	}
	known, _ := a.samples.Last(definition.ID)
	known.Name, known.ID, known.Node, known.State = definition.Name, definition.ID, a.self.Name,
		string(container.State)
	if a.moves.moving(definition.ID) {
		known.State = "being moved"
	}
	return known
}
