package rpc

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
)

// Exec runs a process in a container, which is not migrated meanwhile.
func (s *ContainerService) Exec(stream grpc.BidiStreamingServer[api.ExecInput, api.ExecOutput]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Start == nil || len(first.Start.Args) == 0 {
		return status.Error(codes.InvalidArgument, "exec: the first message must say what to run")
	}
	container, err := s.Containers.Inspect(stream.Context(), first.Start.Reference)
	if err != nil {
		return Error(err)
	}
	s.Moves.AwaitReceipt(stream.Context(), container.Definition.ID)
	leave, err := s.Moves.Enter(container.Definition.ID)
	if err != nil {
		return Error(err)
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
	code, err := s.Engines.EngineFor(container.Definition).Exec(ctx, container.Definition.ID, process)
	if err != nil {
		return Error(err)
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
