package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/node/rpc"
	"github.com/godwit/godwit/internal/staging"
)

// Stage begins a copy, or brings one up to date, and tells of it until a round of it is whole, or
// it has ended.
func (s *localService) Stage(request *api.StageRequest,
	stream grpc.ServerStreamingServer[api.StageUpdate]) error {
	if request.LayersOnly {
		return rpc.Error(s.agent.stageLayers(request, stream))
	}
	g, err := s.agent.beginStage(stream.Context(), request)
	if err != nil {
		return rpc.Error(err)
	}
	before := g.Describe().Rounds
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		told := g.Describe()
		document, err := json.Marshal(told)
		if err != nil {
			return rpc.Error(err)
		}
		if err := stream.Send(&api.StageUpdate{StageJson: document}); err != nil {
			return err
		}
		if told.State == migration.StageEnded || told.State == migration.StageReady && told.Rounds > before {
			return nil
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-g.Done():
		case <-ticker.C:
		}
	}
}

// stageLayers brings layers only, and tells of it until all are there, or cannot be brought.
func (a *Agent) stageLayers(request *api.StageRequest,
	stream grpc.ServerStreamingServer[api.StageUpdate]) error {
	if err := migration.CheckBandwidthLimit(request.BandwidthLimitBitsPerSecond); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	container, err := a.inspect(stream.Context(), request.Container)
	if err != nil {
		return err
	}
	nodes, err := a.candidates([]string{request.Node})
	if err != nil {
		return err
	}
	l, err := a.stages.BeginLayers(container.Definition, nodes[0], request.BandwidthLimitBitsPerSecond)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		told := l.Describe()
		document, err := json.Marshal(told)
		if err != nil {
			return err
		}
		if err := stream.Send(&api.StageUpdate{StageJson: document}); err != nil ||
			told.State != migration.StageLayers {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-l.Done():
		case <-ticker.C:
		}
	}
}

func (s *localService) Stages(context.Context, *api.StagesRequest) (*api.StagesReply, error) {
	list := s.agent.placements.Describe(s.agent.stages.List())
	for _, b := range s.agent.stagedCopies.List() {
		list = append(list, b.Describe())
	}
	for _, o := range s.agent.residuals.List() {
		list = append(list, o.Describe())
	}
	for _, k := range s.agent.kept.List() {
		list = append(list, s.agent.kept.Describe(k, s.agent.self.Name))
	}
	documents, err := rpc.MarshalEach(list)
	return &api.StagesReply{StagesJson: documents}, rpc.Error(err)
}

// Unstage removes a copy at the node where the container is, or at the one where the copy is.
// Layers that are on their way come no more.
func (s *localService) Unstage(ctx context.Context, request *api.UnstageRequest) (*api.UnstageReply, error) {
	if request.Node == "" {
		return &api.UnstageReply{}, rpc.Error(s.agent.placements.Unplace(ctx, request.Container))
	}
	if placed, err := s.agent.placements.LeaveOut(ctx, request.Container, request.Node); placed {
		return &api.UnstageReply{}, rpc.Error(err)
	}
	dropped, err := s.agent.stages.DropLayers(ctx, request.Container, request.Node, staging.ErrRemoved)
	if err != nil {
		return nil, rpc.Error(err)
	}
	g, err := s.agent.stages.Find(request.Container, request.Node)
	if err == nil {
		return &api.UnstageReply{}, rpc.Error(g.End(ctx, staging.ErrRemoved))
	}
	if dropped {
		return &api.UnstageReply{}, nil
	}
	if s.agent.stagedCopies.Remove(request.Container, request.Node) ||
		s.agent.residuals.Remove(request.Container, request.Node) {
		return &api.UnstageReply{}, nil
	}
	for _, k := range s.agent.kept.List() {
		if k.Source == request.Node && migration.Called(request.Container, k.ContainerID, k.Container) &&
			s.agent.kept.Drop(k.ContainerID) {
			return &api.UnstageReply{}, nil
		}
	}
	if s.agent.stages.Strike(request.Container, request.Node) {
		return &api.UnstageReply{}, nil
	}
	return nil, rpc.Error(fmt.Errorf("remove a copy: %w", err))
}

// Keep lets a copy stay, or go. Nothing depends on a copy, so any node may ask.
func (s *peerService) Keep(ctx context.Context, request *api.KeepRequest) (*api.KeepReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(migration.CheckContainerID(request.Container),
		staging.CheckIdle(request.Seconds)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if request.Seconds == 0 {
		return &api.KeepReply{}, rpc.Error(s.agent.stagedCopies.LetGo(ctx, request.Container, from))
	}
	if err := s.agent.stagedCopies.AwaitIdle(ctx, request.Container, from); err != nil {
		return nil, rpc.Error(err)
	}
	kept := s.agent.residuals.Extend(request.Container, time.Now().Add(seconds(request.Seconds)))
	if kept == nil {
		return &api.KeepReply{}, nil
	}
	return &api.KeepReply{MemoryBytes: kept.Bytes(), Incomplete: !kept.Whole()}, nil
}
