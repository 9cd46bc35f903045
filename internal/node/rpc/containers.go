package rpc

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/predict"
)

// ContainerService answers for the containers of this node.
type ContainerService struct {
	Containers OwnContainers
	Life       Life
	Engines    Engines
	Restarts   Restarts
	Moves      Migrations
	// Look measures a container that runs.
	Look func(ctx context.Context, of engine.Definition) (predict.Measured, error)
	// MayRun reports whether the caller may run containers, and so see secrets of theirs.
	MayRun func(ctx context.Context) bool
	Alarms func() []*api.Alarm
}

// OwnContainers are those of all engines, by any reference. The error for a container that has left says to
// which node. See migrate.Containers.
type OwnContainers interface {
	Found
	// Idle finds a container that no migration has to do with.
	Idle(ctx context.Context, reference string) (engine.Container, error)
	// Wait waits until a container has ended.
	Wait(ctx context.Context, id string) (exitCode int, err error)
}

// Life of containers. See containers.Life.
type Life interface {
	Run(ctx context.Context, request *api.RunRequest) (engine.Definition, error)
	Stop(ctx context.Context, reference string, grace time.Duration) error
	Remove(ctx context.Context, reference string, force bool) error
}

// Engines of the node. See engine.Set.
type Engines interface {
	EngineFor(of engine.Definition) engine.Engine
}

// Restarts of the node's own containers. See restart.Restarts.
type Restarts interface {
	Wanted(c engine.Container) bool
	Explain(containers []engine.Container)
	Start(ctx context.Context, c engine.Container, force bool) error
}

// Migrations are those of the node, as far as they concern its containers. See migrate.Moves.
type Migrations interface {
	// Mark adds to containers that leave the state of the migration.
	Mark(containers []engine.Container)
	// AwaitReceipt waits a moment for the end of the migration that has brought a container.
	AwaitReceipt(ctx context.Context, container string)
	// Enter notes that somebody runs a process in a container.
	Enter(container string) (leave func(), err error)
}

// Run makes a container and starts it.
func (s *ContainerService) Run(ctx context.Context, request *api.RunRequest) (*api.RunReply, error) {
	definition, err := s.Life.Run(ctx, request)
	if err != nil {
		return nil, Error(err)
	}
	return &api.RunReply{
		Id: definition.ID, Name: definition.Name, Address: definition.Network.Address.String(),
	}, nil
}

// Wait waits until a container has ended.
func (s *ContainerService) Wait(ctx context.Context, request *api.ContainerRequest) (*api.WaitReply, error) {
	container, err := s.Containers.Inspect(ctx, request.Reference)
	if err != nil {
		return nil, Error(err)
	}
	code, err := s.Containers.Wait(ctx, container.Definition.ID)
	if err != nil {
		return nil, Error(err)
	}
	return &api.WaitReply{ExitCode: int32(code)}, nil
}

// List lists containers, and what an operator should look at.
func (s *ContainerService) List(ctx context.Context, request *api.ListRequest) (*api.ListReply, error) {
	containers, err := s.Containers.ListAnswered(ctx)
	if err != nil {
		return nil, Error(err)
	}
	containers = slices.DeleteFunc(containers, func(c engine.Container) bool {
		ended := c.State == engine.Exited || c.State == engine.Created
		return !request.All && ended && !(c.Definition.EngineName == "" && s.Restarts.Wanted(c))
	})
	s.Restarts.Explain(containers)
	s.Moves.Mark(containers)
	if !s.MayRun(ctx) {
		for i := range containers {
			containers[i].Definition = journal.WithoutSecrets(containers[i].Definition)
		}
	}
	documents, err := MarshalEach(containers)
	return &api.ListReply{ContainersJson: documents, Alarms: s.Alarms()}, Error(err)
}

// Inspect describes a container, with measurements if it runs.
func (s *ContainerService) Inspect(ctx context.Context, request *api.ContainerRequest) (*api.InspectReply,
	error) {
	container, err := s.Containers.Inspect(ctx, request.Reference)
	if err != nil {
		return nil, Error(err)
	}
	explained := []engine.Container{container}
	s.Restarts.Explain(explained)
	inspected := struct {
		engine.Container
		Measured *predict.Measured `json:"measured,omitempty"` // of one that runs
	}{Container: explained[0]}
	if container.State == engine.Running {
		// or it has just ended
		if measured, err := s.Look(ctx, container.Definition); err == nil {
			inspected.Measured = &measured
		}
	}
	document, err := json.Marshal(inspected)
	if err != nil {
		return nil, Error(err)
	}
	return &api.InspectReply{ContainerJson: document}, nil
}

// Stop ends a container.
func (s *ContainerService) Stop(ctx context.Context, request *api.StopRequest) (*api.StopReply, error) {
	grace := time.Duration(request.GraceSeconds * float64(time.Second))
	if request.OwnGrace {
		grace = -1
	}
	return &api.StopReply{}, Error(s.Life.Stop(ctx, request.Reference, grace))
}

// Start starts a container again that has ended.
func (s *ContainerService) Start(ctx context.Context, request *api.StartRequest) (*api.StartReply, error) {
	one, err := s.Containers.Idle(ctx, request.Reference)
	if err == nil {
		err = s.Restarts.Start(ctx, one, request.Force)
	}
	return &api.StartReply{}, Error(err)
}

// Remove removes a container.
func (s *ContainerService) Remove(ctx context.Context, request *api.RemoveRequest) (*api.RemoveReply, error) {
	return &api.RemoveReply{}, Error(s.Life.Remove(ctx, request.Reference, request.Force))
}

// Logs sends the log of a container.
func (s *ContainerService) Logs(request *api.LogsRequest,
	stream grpc.ServerStreamingServer[api.LogEntry]) error {
	container, err := s.Containers.Inspect(stream.Context(), request.Reference)
	if err != nil {
		return Error(err)
	}
	options := engine.LogOptions{Follow: request.Follow, Tail: int(request.Tail)}
	return Error(s.Engines.EngineFor(container.Definition).Logs(stream.Context(),
		container.Definition.ID, options, func(entry engine.LogEntry) error {
			return stream.Send(&api.LogEntry{
				UnixNanoseconds: entry.Time.UnixNano(), Stderr: entry.Stream == "stderr", Data: entry.Data,
			})
		}))
}
