package rpc

import (
	"context"
	"log/slog"

	"github.com/godwit/godwit/internal/api"
)

// MemberService answers for the nodes of the cluster and its authority.
type MemberService struct{ Members Members }

// Members change which nodes belong to the cluster. See cluster.Members.
type Members interface {
	RemoveNode(ctx context.Context, name string, force bool) (*api.RemoveNodeReply, error)
	PromoteNode(ctx context.Context, name string) error
	DemoteNode(ctx context.Context, name string) error
	RollOver(ctx context.Context, request *api.RolloverRequest) (*api.RolloverReply, error)
	RolloverStatus() *api.RolloverReply
}

// RemoveNode takes a node out of the cluster for good.
func (s *MemberService) RemoveNode(ctx context.Context, request *api.RemoveNodeRequest) (*api.RemoveNodeReply,
	error) {
	reply, err := s.Members.RemoveNode(ctx, request.Name, request.Force)
	return reply, Error(err)
}

// PromoteNode gives a node the authority.
func (s *MemberService) PromoteNode(ctx context.Context, request *api.NodeRequest) (*api.PromoteNodeReply,
	error) {
	return &api.PromoteNodeReply{}, Error(s.Members.PromoteNode(ctx, request.Name))
}

// DemoteNode takes the authority away from a node.
func (s *MemberService) DemoteNode(ctx context.Context, request *api.NodeRequest) (*api.DemoteNodeReply,
	error) {
	return &api.DemoteNodeReply{}, Error(s.Members.DemoteNode(ctx, request.Name))
}

// Rollover begins or ends a rollover of the authority.
func (s *MemberService) Rollover(ctx context.Context,
	request *api.RolloverRequest) (*api.RolloverReply, error) {
	reply, err := s.Members.RollOver(ctx, request)
	return reply, Error(err)
}

// RolloverStatus shows the progress of a rollover.
func (s *MemberService) RolloverStatus(context.Context,
	*api.RolloverStatusRequest) (*api.RolloverReply, error) {
	return s.Members.RolloverStatus(), nil
}

// AuthorityService lets other nodes hand the cluster's authority to this one, or take it away.
type AuthorityService struct {
	Identity Authority
	Log      *slog.Logger
}

// Authority is held by the node, or not. See identity.Identity.
type Authority interface {
	TakeAuthority(handover []byte) error
	DropAuthority(order []byte) (rest []byte, err error)
}

// TakeAuthority makes this node an authority. Nobody but one that has the key already can give it,
// so any node may.
func (s *AuthorityService) TakeAuthority(ctx context.Context,
	request *api.TakeAuthorityRequest) (*api.TakeAuthorityReply, error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Identity.TakeAuthority(request.HandoverJson); err != nil {
		return nil, Error(err)
	}
	s.Log.Info("this node has the cluster's authority now", "from", from)
	return &api.TakeAuthorityReply{}, nil
}

// DropAuthority has this node give the authority up, if the authority itself says so.
func (s *AuthorityService) DropAuthority(ctx context.Context,
	request *api.DropAuthorityRequest) (*api.DropAuthorityReply, error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	rest, err := s.Identity.DropAuthority(request.OrderJson)
	if err != nil {
		return nil, Error(err)
	}
	s.Log.Info("this node does not have the cluster's authority any more", "ordered_by", from)
	return &api.DropAuthorityReply{RestJson: rest}, nil
}
