package rpc

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
	"github.com/godwit/godwit/internal/placement/controller"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/transfer/kept"
)

// StageService answers for copies of containers ahead of their moves, and for what moves have left.
type StageService struct {
	Node       string
	Begins     BeginsStages
	Placements *controller.Controller
	Made       *staging.Stages // of containers that are here
	Copies     *staging.Copies // here, of containers at other nodes
	Residuals  *residual.Copies
	Kept       *kept.Copies
}

// BeginsStages begins to make copies.
type BeginsStages interface {
	// BeginStage begins to make the copy that a user wants, or brings the one that is there up to date.
	BeginStage(ctx context.Context, request *api.StageRequest) (*staging.Stage, error)
	// BeginLayers begins to bring layers only.
	BeginLayers(ctx context.Context, request *api.StageRequest) (*staging.Layers, error)
}

// staged is a copy that is made.
type staged interface {
	Describe() migration.Stage
	Done() <-chan struct{}
}

// Stage begins a copy, or brings one up to date, and tells of it until a round of it is whole, or
// it has ended. Layers only are told of until all are there, or cannot be brought.
func (s *StageService) Stage(request *api.StageRequest,
	stream grpc.ServerStreamingServer[api.StageUpdate]) error {
	if request.LayersOnly {
		if err := migration.CheckBandwidthLimit(request.BandwidthLimitBitsPerSecond); err != nil {
			return Error(fmt.Errorf("%w: %w", api.ErrInvalid, err))
		}
		l, err := s.Begins.BeginLayers(stream.Context(), request)
		if err != nil {
			return Error(err)
		}
		return tell(stream, l, func(told migration.Stage) bool { return told.State != migration.StageLayers })
	}
	g, err := s.Begins.BeginStage(stream.Context(), request)
	if err != nil {
		return Error(err)
	}
	before := g.Describe().Rounds
	return tell(stream, g, func(told migration.Stage) bool {
		return told.State == migration.StageEnded ||
			told.State == migration.StageReady && told.Rounds > before
	})
}

// tell tells of a copy until there is enough of it.
func tell(stream grpc.ServerStreamingServer[api.StageUpdate], one staged,
	enough func(migration.Stage) bool) error {
	ticker := time.NewTicker(WatchEvery)
	defer ticker.Stop()
	for {
		told := one.Describe()
		document, err := json.Marshal(told)
		if err != nil {
			return Error(err)
		}
		if err := stream.Send(&api.StageUpdate{StageJson: document}); err != nil {
			return err
		}
		if enough(told) {
			return nil
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-one.Done():
		case <-ticker.C:
		}
	}
}

// Stages lists all copies, those here and those elsewhere.
func (s *StageService) Stages(context.Context, *api.StagesRequest) (*api.StagesReply, error) {
	list := s.Placements.Describe(s.Made.List())
	for _, b := range s.Copies.List() {
		list = append(list, b.Describe())
	}
	for _, o := range s.Residuals.List() {
		list = append(list, o.Describe())
	}
	for _, k := range s.Kept.List() {
		list = append(list, s.Kept.Describe(k, s.Node))
	}
	documents, err := MarshalEach(list)
	return &api.StagesReply{StagesJson: documents}, Error(err)
}

// Unstage removes a copy at the node where the container is, or at the one where the copy is.
// Layers that are on their way come no more.
func (s *StageService) Unstage(ctx context.Context, request *api.UnstageRequest) (*api.UnstageReply, error) {
	if request.Node == "" {
		return &api.UnstageReply{}, Error(s.Placements.Unplace(ctx, request.Container))
	}
	if placed, err := s.Placements.LeaveOut(ctx, request.Container, request.Node); placed {
		return &api.UnstageReply{}, Error(err)
	}
	dropped, err := s.Made.DropLayers(ctx, request.Container, request.Node, staging.ErrRemoved)
	if err != nil {
		return nil, Error(err)
	}
	g, err := s.Made.Find(request.Container, request.Node)
	if err == nil {
		return &api.UnstageReply{}, Error(g.End(ctx, staging.ErrRemoved))
	}
	if dropped || s.removeHere(request) || s.Made.Strike(request.Container, request.Node) {
		return &api.UnstageReply{}, nil
	}
	return nil, Error(fmt.Errorf("remove a copy: %w", err))
}

// removeHere removes what is here of a container at another node.
func (s *StageService) removeHere(request *api.UnstageRequest) bool {
	if s.Copies.Remove(request.Container, request.Node) ||
		s.Residuals.Remove(request.Container, request.Node) {
		return true
	}
	for _, k := range s.Kept.List() {
		if k.Source == request.Node && migration.Called(request.Container, k.ContainerID, k.Container) &&
			s.Kept.Drop(k.ContainerID) {
			return true
		}
	}
	return false
}

// StageAhead starts the placement of copies where a container will go, or may go, and returns what is
// expected of them.
func (s *StageService) StageAhead(ctx context.Context, request *api.StageAheadRequest) (*api.StagesReply,
	error) {
	if request.Off {
		return &api.StagesReply{}, Error(s.Placements.Unplace(ctx, request.Container))
	}
	list, err := s.Placements.Place(ctx, request)
	if err != nil {
		return nil, Error(err)
	}
	documents, err := MarshalEach(list)
	return &api.StagesReply{StagesJson: documents}, Error(err)
}

// CopyService answers other nodes for copies of their containers.
type CopyService struct {
	Placements *controller.Controller
	Copies     *staging.Copies
	Residuals  *residual.Copies
}

// Keep lets a copy stay, or go. Nothing depends on a copy, so any node may ask.
func (s *CopyService) Keep(ctx context.Context, request *api.KeepRequest) (*api.KeepReply, error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(migration.CheckContainerID(request.Container),
		staging.CheckIdle(request.Seconds)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if request.Seconds == 0 {
		return &api.KeepReply{}, Error(s.Copies.LetGo(ctx, request.Container, from))
	}
	if err := s.Copies.AwaitIdle(ctx, request.Container, from); err != nil {
		return nil, Error(err)
	}
	kept := s.Residuals.Extend(request.Container, time.Now().Add(seconds(request.Seconds)))
	if kept == nil {
		return &api.KeepReply{}, nil
	}
	return &api.KeepReply{MemoryBytes: kept.Bytes(), Incomplete: !kept.Whole()}, nil
}

// Follow takes over where copies of a container shall be that has come here, from the node from
// which it has come.
func (s *CopyService) Follow(ctx context.Context, request *api.FollowRequest) (*api.FollowReply, error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	return &api.FollowReply{}, Error(s.Placements.Follow(ctx, from, request))
}
