package rpc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/predict"
)

// TopService answers for what containers use.
type TopService struct {
	Node       string
	Containers Found
	Samples    Samples
	Moving     func(container string) bool
	Log        *slog.Logger
}

// Found are the containers of all engines, by any reference.
type Found interface {
	Inspect(ctx context.Context, reference string) (engine.Container, error)
	ListAnswered(ctx context.Context) ([]engine.Container, error)
}

// Samples are measurements of containers. See sampling.Samples.
type Samples interface {
	Watch(definition engine.Definition)
	Measure(ctx context.Context, definition engine.Definition, window, age time.Duration) predict.Measured
	Last(container string) (predict.Measured, bool)
}

const (
	// topAge is how old what Top tells may be.
	topAge = 5 * time.Second
	// mostWindow bounds for how long anybody waits for a window of the dirtying curve.
	mostWindow = time.Minute
)

// Top measures the containers that run.
func (s *TopService) Top(ctx context.Context, request *api.TopRequest) (*api.TopReply, error) {
	containers, err := s.running(ctx, request.Container)
	if err != nil {
		return nil, Error(err)
	}
	window := min(max(seconds(request.WindowSeconds), seconds(predict.Windows()[0])), mostWindow)
	measured := make([]predict.Measured, len(containers))
	var all sync.WaitGroup
	for i, container := range containers {
		all.Go(guard.Logged(s.Log, func() {
			s.Samples.Watch(container.Definition) // who looks again and again is told what is new
			measured[i] = s.measured(ctx, container, window, topAge)
		}))
	}
	all.Wait()
	documents, err := MarshalEach(measured)
	return &api.TopReply{MeasuredJson: documents}, Error(err)
}

// running are the containers that run, or the one that is named.
func (s *TopService) running(ctx context.Context, reference string) ([]engine.Container, error) {
	if reference != "" {
		container, err := s.Containers.Inspect(ctx, reference)
		return []engine.Container{container}, err
	}
	all, err := s.Containers.ListAnswered(ctx)
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
func (s *TopService) measured(ctx context.Context, container engine.Container, window,
	age time.Duration) predict.Measured {
	definition := container.Definition
	if container.State == engine.Running && !s.Moving(definition.ID) {
		measured := s.Samples.Measure(ctx, definition, window, age)
		if measured.ID != "" {
			return measured
		}
	}
	known, _ := s.Samples.Last(definition.ID)
	known.Name, known.ID, known.Node, known.State = definition.Name, definition.ID, s.Node,
		string(container.State)
	if s.Moving(definition.ID) {
		known.State = "being moved"
	}
	return known
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
