package agent

import (
	"context"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/node/rpc"
)

// StageAhead starts the placement of copies where a container will go, or may go, and returns what is
// expected of them.
func (s *localService) StageAhead(ctx context.Context, request *api.StageAheadRequest) (*api.StagesReply,
	error) {
	if request.Off {
		return &api.StagesReply{}, rpc.Error(s.agent.placements.Unplace(ctx, request.Container))
	}
	list, err := s.agent.placements.Place(ctx, request)
	if err != nil {
		return nil, rpc.Error(err)
	}
	documents, err := rpc.MarshalEach(list)
	return &api.StagesReply{StagesJson: documents}, rpc.Error(err)
}

// Follow takes over where copies of a container shall be that has come here, from the node from
// which it has come.
func (s *peerService) Follow(ctx context.Context, request *api.FollowRequest) (*api.FollowReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	return &api.FollowReply{}, rpc.Error(s.agent.placements.Follow(ctx, from, request))
}
