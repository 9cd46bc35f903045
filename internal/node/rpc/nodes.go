package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// NodeService answers for this node and the other ones of the cluster.
type NodeService struct {
	Self      identity.Node
	Agent     string // its version
	Authority func() (*identity.Authority, error)
	// Elsewhere says which other nodes have the authority.
	Elsewhere func() string
	Peers     Peers
	// Measure measures the link to a node.
	Measure func(ctx context.Context, node identity.Node) error
	// Overlay adds to the description of a node how packets go there.
	Overlay func(node *api.Node)
	Log     *slog.Logger
}

// Peers are the other nodes. See cluster.Peers.
type Peers interface {
	Others() []identity.Node
	Hello(ctx context.Context, node identity.Node) error
	Describe() []*api.Node
}

// Version tells which agent this is.
func (s *NodeService) Version(context.Context, *api.VersionRequest) (*api.VersionReply, error) {
	return &api.VersionReply{Version: s.Agent, Node: s.Self.Name}, nil
}

// Token makes a token with which a node may join.
func (s *NodeService) Token(_ context.Context, request *api.TokenRequest) (*api.TokenReply, error) {
	authority, err := s.Authority()
	if err != nil {
		return nil, Error(fmt.Errorf("%w; run this on the node that was initialised first, or one that "+
			"was promoted%s", err, s.Elsewhere()))
	}
	token, err := authority.IssueToken(time.Duration(request.TtlSeconds*float64(time.Second)), request.Node)
	if err != nil {
		return nil, Error(err)
	}
	return &api.TokenReply{Token: token.String(), Address: s.Self.Address}, nil
}

// Nodes says hello to every node now, so that the answer is about now.
func (s *NodeService) Nodes(ctx context.Context, request *api.NodesRequest) (*api.NodesReply, error) {
	var all sync.WaitGroup
	for _, node := range s.Peers.Others() {
		all.Go(guard.Logged(s.Log, func() {
			if err := s.Peers.Hello(ctx, node); err != nil || !request.Measure {
				return // What went wrong is in the answer.
			}
			if err := s.Measure(ctx, node); err != nil {
				s.Log.Info("bandwidth not measured", "node", node.Name, "error", err)
			}
		}))
	}
	all.Wait()
	nodes := s.Peers.Describe()
	for _, node := range nodes {
		s.Overlay(node)
	}
	return &api.NodesReply{Nodes: nodes}, nil
}

// NeighbourService answers other nodes for what this one knows of containers and their addresses.
type NeighbourService struct {
	Self     string // name of this node
	Greeted  Greeted
	Released Released
	Presents Presents
	// Forget forgets what is kept of a container that is no more.
	Forget func(from, container string) error
}

// Greeted answers greetings. See cluster.Peers.
type Greeted interface {
	Answer(from string, request *api.HelloRequest) (*api.HelloReply, error)
}

// Released takes addresses back.
type Released interface {
	// MayRelease reports whether a node has the container of an address, as far as is known here.
	MayRelease(node string, address netip.Addr) bool
	// Release takes an address back whose container was removed elsewhere.
	Release(ctx context.Context, address netip.Addr, container string) error
}

// Presents knows whether containers of the node's own engine are here. See restart.Restarts.
type Presents interface {
	Holding(ctx context.Context, container string) (string, error)
}

// Hello answers a greeting.
func (s *NeighbourService) Hello(ctx context.Context, request *api.HelloRequest) (*api.HelloReply, error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := s.Greeted.Answer(from, request)
	return reply, Error(err)
}

// Release takes an address back.
func (s *NeighbourService) Release(ctx context.Context, request *api.ReleaseRequest) (*api.ReleaseReply,
	error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddr(request.Address)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "address %.60q: %v", request.Address, err)
	}
	if err := migration.CheckContainerID(request.Container); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !s.Released.MayRelease(from, address) {
		// That node retries. Meanwhile the node that had the container may tell that it has it no longer.
		return nil, status.Errorf(codes.FailedPrecondition,
			"as far as %s knows, node %s does not have the container of %s", s.Self, from, address)
	}
	return &api.ReleaseReply{}, Error(s.Released.Release(ctx, address, request.Container))
}

// Presence reports whether this node has a container of the embedded engine, or is about to get it.
func (s *NeighbourService) Presence(ctx context.Context,
	request *api.PresenceRequest) (*api.PresenceReply, error) {
	if err := migration.CheckContainerID(request.Container); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	state, err := s.Presents.Holding(ctx, request.Container)
	return &api.PresenceReply{State: state}, Error(err)
}

// Removed forgets what is kept of a container that is no more. It is nothing that anybody would
// miss, so any node may say so.
func (s *NeighbourService) Removed(ctx context.Context, request *api.RemovedRequest) (*api.RemovedReply,
	error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	return &api.RemovedReply{}, Error(s.Forget(from, request.Container))
}
