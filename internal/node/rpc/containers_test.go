package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/predict"
)

// host has containers, and fails if it is told to.
type host struct {
	engine.Engine
	has   []engine.Container
	did   []string
	err   error
	stdin string
	left  int // how many have left a container that they had entered
}

func (h *host) do(what string) error {
	h.did = append(h.did, what)
	return h.err
}

func (h *host) Inspect(_ context.Context, reference string) (engine.Container, error) {
	for _, one := range h.has {
		if one.Definition.Name == reference {
			return one, h.err
		}
	}
	return engine.Container{}, engine.ErrNotFound
}
func (h *host) ListAnswered(context.Context) ([]engine.Container, error) {
	return slices.Clone(h.has), h.err
}
func (h *host) Idle(ctx context.Context, reference string) (engine.Container, error) {
	return h.Inspect(ctx, reference)
}
func (h *host) Wait(context.Context, string) (int, error) { return 7, h.err }
func (h *host) Run(context.Context, *api.RunRequest) (engine.Definition, error) {
	return engine.Definition{ID: "x", Name: "web"}, h.do("run")
}
func (h *host) Stop(_ context.Context, _ string, grace time.Duration) error {
	return h.do("stop " + grace.String())
}
func (h *host) Remove(context.Context, string, bool) error          { return h.do("remove") }
func (h *host) EngineFor(engine.Definition) engine.Engine           { return h }
func (h *host) Wanted(c engine.Container) bool                      { return c.Definition.Name == "again" }
func (h *host) Explain(all []engine.Container)                      {}
func (h *host) Start(context.Context, engine.Container, bool) error { return h.do("start") }
func (h *host) Mark(all []engine.Container) {
	for i := range all {
		all[i].Migration = "running"
	}
}
func (h *host) AwaitReceipt(context.Context, string) {}
func (h *host) Enter(string) (func(), error)         { return func() { h.left++ }, h.do("enter") }
func (h *host) Exec(_ context.Context, _ string, process engine.Exec) (int, error) {
	if process.Stdin != nil {
		content, err := io.ReadAll(process.Stdin)
		if err != nil {
			return 0, err
		}
		h.stdin = string(content)
	}
	_, out := process.Stdout.Write([]byte("out"))
	_, err := process.Stderr.Write([]byte("err"))
	return 3, errors.Join(out, err, h.err)
}
func (h *host) Logs(_ context.Context, _ string, _ engine.LogOptions,
	each func(engine.LogEntry) error) error {
	return errors.Join(each(engine.LogEntry{Stream: "stderr", Data: []byte("line")}), h.err)
}

func newContainerService(h *host, may bool) *ContainerService {
	return &ContainerService{
		Containers: h, Life: h, Engines: h, Restarts: h, Moves: h,
		Look: func(context.Context, engine.Definition) (predict.Measured, error) {
			return predict.Measured{Name: "web"}, h.err
		},
		MayRun: func(context.Context) bool { return may },
		Alarms: func() []*api.Alarm { return []*api.Alarm{{Name: "web"}} },
	}
}

func container(name string, state engine.State) engine.Container {
	return engine.Container{State: state, Definition: engine.Definition{
		ID: "x", Name: name, Env: []string{"PASSWORD=hunter2"},
	}}
}

// TestList shows what runs, or will again, and secrets only to those who may run containers.
func TestList(t *testing.T) {
	h := &host{has: []engine.Container{container("web", engine.Running), container("over", engine.Exited),
		container("again", engine.Exited)}}
	for all, want := range map[bool]int{false: 2, true: 3} {
		reply, err := newContainerService(h, all).List(t.Context(), &api.ListRequest{All: all})
		if err != nil || len(reply.ContainersJson) != want || len(reply.Alarms) != 1 {
			t.Errorf("%d containers, %v", len(reply.GetContainersJson()), err)
			continue
		}
		document := string(reply.ContainersJson[0])
		if strings.Contains(document, "hunter2") != all || !strings.Contains(document, `"running"`) {
			t.Errorf("listed: %s", document)
		}
	}
	h.err = errFailed
	if _, err := newContainerService(h, true).List(t.Context(), &api.ListRequest{}); err == nil {
		t.Error("an engine that does not answer is hidden")
	}
}

// TestContainerCalls: each call finds its container, and hands on the error of what it does.
func TestContainerCalls(t *testing.T) {
	for _, fails := range []error{nil, errFailed} {
		h := &host{has: []engine.Container{container("web", engine.Running)}, err: fails}
		s, ctx := newContainerService(h, true), t.Context()
		_, run := s.Run(ctx, &api.RunRequest{})
		_, waited := s.Wait(ctx, &api.ContainerRequest{Reference: "web"})
		_, stopped := s.Stop(ctx, &api.StopRequest{Reference: "web", GraceSeconds: 2})
		_, started := s.Start(ctx, &api.StartRequest{Reference: "web"})
		_, removed := s.Remove(ctx, &api.RemoveRequest{Reference: "web"})
		_, inspected := s.Inspect(ctx, &api.ContainerRequest{Reference: "web"})
		logged := s.Logs(&api.LogsRequest{Reference: "web"}, &replies[api.LogEntry]{ctx: ctx})
		for what, err := range map[string]error{"run": run, "wait": waited, "stop": stopped, "start": started,
			"remove": removed, "inspect": inspected, "logs": logged} {
			if (err == nil) != (fails == nil) {
				t.Errorf("%s: %v, want %v", what, err, fails)
			}
		}
		if !slices.Contains(h.did, "stop 2s") {
			t.Errorf("did %q", h.did)
		}
	}
	s := newContainerService(&host{}, true)
	_, waited := s.Wait(t.Context(), &api.ContainerRequest{Reference: "none"})
	_, inspected := s.Inspect(t.Context(), &api.ContainerRequest{Reference: "none"})
	logged := s.Logs(&api.LogsRequest{Reference: "none"}, &replies[api.LogEntry]{ctx: t.Context()})
	for _, err := range []error{waited, inspected, logged} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("a container that is not there: %v", err)
		}
	}
}

// execs is the stream of an exec.
type execs struct {
	grpc.BidiStreamingServer[api.ExecInput, api.ExecOutput]
	ctx  context.Context
	rest []*api.ExecInput
	sent []*api.ExecOutput
}

func (e *execs) Context() context.Context { return e.ctx }

func (e *execs) Recv() (*api.ExecInput, error) {
	if len(e.rest) == 0 {
		return nil, io.EOF
	}
	next := e.rest[0]
	e.rest = e.rest[1:]
	return next, nil
}

func (e *execs) Send(output *api.ExecOutput) error {
	e.sent = append(e.sent, output)
	return nil
}

// TestExec runs a process with its input and outputs, during which the container cannot move.
func TestExec(t *testing.T) {
	h := &host{has: []engine.Container{container("web", engine.Running)}}
	start := &api.ExecInput{Start: &api.ExecStart{Reference: "web", Args: []string{"cat"}, Stdin: true}}
	input := []*api.ExecInput{start, {Stdin: []byte("in")}, {EndOfStdin: true}}
	stream := &execs{ctx: t.Context(), rest: input}
	err := newContainerService(h, true).Exec(stream)
	if err != nil || h.stdin != "in" || h.left != 1 || len(stream.sent) != 3 ||
		string(stream.sent[0].Stdout) != "out" || string(stream.sent[1].Stderr) != "err" ||
		!stream.sent[2].Ended || stream.sent[2].ExitCode != 3 {
		t.Errorf("%v, stdin %q, left %d, sent %v", err, h.stdin, h.left, stream.sent)
	}
	if err := newContainerService(h, true).Exec(&execs{ctx: t.Context(),
		rest: []*api.ExecInput{{}}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("nothing to run: %v", err)
	}
	h.err = engine.ErrBusy
	if err := newContainerService(h, true).Exec(&execs{ctx: t.Context(),
		rest: []*api.ExecInput{start}}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("it is being moved: %v", err)
	}
}
