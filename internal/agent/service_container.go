package agent

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/node/rpc"
	"github.com/godwit/godwit/internal/predict"
)

// localService answers the command line on this node. It translates: what it does is done by the Agent.
type localService struct {
	unansweredLocally
	*rpc.AuditService
	*rpc.ImageService
	*rpc.MemberService
	*rpc.PolicyService
	*rpc.TopService
	*rpc.VolumeService
	agent *Agent
}

// unansweredLocally are calls that no service answers. They lie deeper than those of services, which so hide
// them.
type unansweredLocally struct{ api.UnimplementedAgentServer }

func newLocalService(a *Agent) *localService {
	return &localService{
		AuditService:  &rpc.AuditService{Calls: a.calls},
		ImageService:  &rpc.ImageService{Store: a.images, Containers: a.embedded},
		MemberService: &rpc.MemberService{Members: a.members},
		PolicyService: &rpc.PolicyService{File: a.config.PolicyFile, Obeyed: a.config.Policy},
		TopService: &rpc.TopService{Node: a.self.Name, Containers: found{a}, Samples: a.samples,
			Moving: a.moves.moving, Log: a.log},
		VolumeService: &rpc.VolumeService{Store: a.embedded},
		agent:         a,
	}
}

// found are the containers of this node. The error of one that has left says to which node.
type found struct{ agent *Agent }

func (f found) Inspect(ctx context.Context, reference string) (engine.Container, error) {
	return f.agent.inspect(ctx, reference)
}

func (f found) ListAnswered(ctx context.Context) ([]engine.Container, error) {
	return f.agent.engines.ListAnswered(ctx)
}

func (s *localService) Version(context.Context, *api.VersionRequest) (*api.VersionReply, error) {
	return &api.VersionReply{Version: s.agent.config.Version, Node: s.agent.self.Name}, nil
}

func (s *localService) Run(ctx context.Context, request *api.RunRequest) (*api.RunReply, error) {
	definition, err := s.agent.run(ctx, request)
	if err != nil {
		return nil, rpc.Error(err)
	}
	return &api.RunReply{
		Id: definition.ID, Name: definition.Name, Address: definition.Network.Address.String(),
	}, nil
}

func (s *localService) Wait(ctx context.Context, request *api.ContainerRequest) (*api.WaitReply, error) {
	container, err := s.agent.inspect(ctx, request.Reference)
	if err != nil {
		return nil, rpc.Error(err)
	}
	code, err := s.agent.wait(ctx, container.Definition.ID)
	if err != nil {
		return nil, rpc.Error(err)
	}
	return &api.WaitReply{ExitCode: int32(code)}, nil
}

func (s *localService) List(ctx context.Context, request *api.ListRequest) (*api.ListReply, error) {
	containers, err := s.agent.engines.ListAnswered(ctx)
	if err != nil {
		return nil, rpc.Error(err)
	}
	containers = slices.DeleteFunc(containers, func(c engine.Container) bool {
		ended := c.State == engine.Exited || c.State == engine.Created
		return !request.All && ended && !(c.Definition.EngineName == "" && s.agent.restarts.Wanted(c))
	})
	s.agent.restarts.Explain(containers)
	s.agent.moves.tell(containers)
	if !s.agent.rights.MayRun(ctx) {
		for i := range containers {
			containers[i].Definition = journal.WithoutSecrets(containers[i].Definition)
		}
	}
	documents, err := rpc.MarshalEach(containers)
	return &api.ListReply{ContainersJson: documents, Alarms: s.agent.alarms()}, rpc.Error(err)
}

func (s *localService) Inspect(ctx context.Context, request *api.ContainerRequest) (*api.InspectReply,
	error) {
	container, err := s.agent.inspect(ctx, request.Reference)
	if err != nil {
		return nil, rpc.Error(err)
	}
	explained := []engine.Container{container}
	s.agent.restarts.Explain(explained)
	inspected := struct {
		engine.Container
		Measured *predict.Measured `json:"measured,omitempty"` // of one that runs
	}{Container: explained[0]}
	if container.State == engine.Running {
		// or it has just ended
		if measured, err := s.agent.samples.Look(ctx, container.Definition); err == nil {
			inspected.Measured = &measured
		}
	}
	document, err := json.Marshal(inspected)
	if err != nil {
		return nil, rpc.Error(err)
	}
	return &api.InspectReply{ContainerJson: document}, nil
}

func (s *localService) Stop(ctx context.Context, request *api.StopRequest) (*api.StopReply, error) {
	grace := time.Duration(request.GraceSeconds * float64(time.Second))
	if request.OwnGrace {
		grace = -1
	}
	return &api.StopReply{}, rpc.Error(s.agent.halt(ctx, request.Reference, grace))
}

func (s *localService) Start(ctx context.Context, request *api.StartRequest) (*api.StartReply, error) {
	one, err := s.agent.idle(ctx, request.Reference)
	if err == nil {
		err = s.agent.restarts.Start(ctx, one, request.Force)
	}
	return &api.StartReply{}, rpc.Error(err)
}

func (s *localService) Remove(ctx context.Context, request *api.RemoveRequest) (*api.RemoveReply, error) {
	return &api.RemoveReply{}, rpc.Error(s.agent.remove(ctx, request.Reference, request.Force))
}

func (s *localService) Logs(request *api.LogsRequest, stream grpc.ServerStreamingServer[api.LogEntry]) error {
	container, err := s.agent.inspect(stream.Context(), request.Reference)
	if err != nil {
		return rpc.Error(err)
	}
	options := engine.LogOptions{Follow: request.Follow, Tail: int(request.Tail)}
	return rpc.Error(s.agent.engines.EngineFor(container.Definition).Logs(stream.Context(),
		container.Definition.ID, options, func(entry engine.LogEntry) error {
			return stream.Send(&api.LogEntry{
				UnixNanoseconds: entry.Time.UnixNano(), Stderr: entry.Stream == "stderr", Data: entry.Data,
			})
		}))
}

func (s *localService) Exec(stream grpc.BidiStreamingServer[api.ExecInput, api.ExecOutput]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Start == nil || len(first.Start.Args) == 0 {
		return status.Error(codes.InvalidArgument, "exec: the first message must say what to run")
	}
	container, err := s.agent.inspect(stream.Context(), first.Start.Reference)
	if err != nil {
		return rpc.Error(err)
	}
	s.agent.moves.awaitReceipt(stream.Context(), container.Definition.ID)
	leave, err := s.agent.moves.enter(container.Definition.ID)
	if err != nil {
		return rpc.Error(err)
	}
	defer leave()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	output := &execOutput{stream: stream}
	process := engine.Exec{
		Args: first.Start.Args, Env: first.Start.Env, Dir: first.Start.Dir, User: first.Start.User,
		Stdout: output.writer(func(data []byte) *api.ExecOutput { return &api.ExecOutput{Stdout: data} }),
		Stderr: output.writer(func(data []byte) *api.ExecOutput { return &api.ExecOutput{Stderr: data} }),
	}
	if first.Start.Stdin {
		stdin := execStdin(stream)
		defer stdin.Close() // Who still writes to a process that has ended shall not wait for ever.
		process.Stdin = stdin
	}
	code, err := s.agent.engines.EngineFor(container.Definition).Exec(ctx, container.Definition.ID, process)
	if err != nil {
		return rpc.Error(err)
	}
	return output.send(&api.ExecOutput{Ended: true, ExitCode: int32(code)})
}

// execStdin makes a reader of the messages of a stream. It ends with the stream.
func execStdin(stream grpc.BidiStreamingServer[api.ExecInput, api.ExecOutput]) io.ReadCloser {
	reader, writer := io.Pipe()
	guard.Go(func() error {
		defer writer.Close()
		for {
			input, err := stream.Recv()
			if err != nil || input.EndOfStdin {
				return nil
			}
			if _, err := writer.Write(input.Stdin); err != nil {
				return err
			}
		}
	})
	return reader
}

// execOutput lets the two outputs of a process share a stream.
type execOutput struct {
	mu     sync.Mutex
	stream grpc.BidiStreamingServer[api.ExecInput, api.ExecOutput]
}

func (o *execOutput) send(output *api.ExecOutput) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stream.Send(output)
}

func (o *execOutput) writer(message func([]byte) *api.ExecOutput) io.Writer {
	return writerFunc(func(data []byte) (int, error) {
		if err := o.send(message(data)); err != nil {
			return 0, err
		}
		return len(data), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(data []byte) (int, error) { return f(data) }

// Errors that are the caller's wrap one of these. rpc.Error leaves their own words out.
var (
	errInvalid = api.ErrInvalid
	errRefused = api.ErrRefused
)
