package agent

import (
	"context"

	"github.com/godwit/godwit/internal/api"
)

// RemoveNode takes a node out of the cluster for good.
func (s *localService) RemoveNode(ctx context.Context, request *api.RemoveNodeRequest) (*api.RemoveNodeReply,
	error) {
	reply, err := s.agent.members.RemoveNode(ctx, request.Name, request.Force)
	return reply, wireError(err)
}

// PromoteNode gives a node the authority.
func (s *localService) PromoteNode(ctx context.Context, request *api.NodeRequest) (*api.PromoteNodeReply,
	error) {
	return &api.PromoteNodeReply{}, wireError(s.agent.members.PromoteNode(ctx, request.Name))
}

// DemoteNode takes the authority away from a node.
func (s *localService) DemoteNode(ctx context.Context, request *api.NodeRequest) (*api.DemoteNodeReply,
	error) {
	return &api.DemoteNodeReply{}, wireError(s.agent.members.DemoteNode(ctx, request.Name))
}

// TakeAuthority makes this node an authority. Nobody but one that has the key already can give it,
// so any node may.
func (s *peerService) TakeAuthority(ctx context.Context,
	request *api.TakeAuthorityRequest) (*api.TakeAuthorityReply, error) {
	from, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.agent.id.TakeAuthority(request.HandoverJson); err != nil {
		return nil, wireError(err)
	}
	s.agent.log.Info("this node has the cluster's authority now", "from", from)
	return &api.TakeAuthorityReply{}, nil
}

// DropAuthority has this node give the authority up, if the authority itself says so.
func (s *peerService) DropAuthority(ctx context.Context,
	request *api.DropAuthorityRequest) (*api.DropAuthorityReply, error) {
	from, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	rest, err := s.agent.id.DropAuthority(request.OrderJson)
	if err != nil {
		return nil, wireError(err)
	}
	s.agent.log.Info("this node does not have the cluster's authority any more", "ordered_by", from)
	return &api.DropAuthorityReply{RestJson: rest}, nil
}

// Rollover begins or ends a rollover of the authority.
func (s *localService) Rollover(ctx context.Context,
	request *api.RolloverRequest) (*api.RolloverReply, error) {
	reply, err := s.agent.members.RollOver(ctx, request)
	return reply, wireError(err)
}

// RolloverStatus shows the progress of a rollover.
func (s *localService) RolloverStatus(context.Context,
	*api.RolloverStatusRequest) (*api.RolloverReply, error) {
	return s.agent.members.RolloverStatus(), nil
}
