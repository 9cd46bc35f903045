package rpc

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire/identity"
)

// LayerService answers other nodes for image layers.
type LayerService struct {
	Mover Layers
	Nodes Nodes
	Rules Rules
}

// Layers of images are brought and described. See layers.Mover.
type Layers interface {
	Fetch(ctx context.Context, from identity.Node, request *api.FetchRequest,
		tell func(migration.Layers) error) error
	Here(diffIDs []string) []*api.Layer
}

// Nodes of the cluster. See cluster.Peers.
type Nodes interface {
	Find(name string) (identity.Node, error)
}

// Rules say which node may fill this one with layers, and which may read them. See admission.Rules.
type Rules interface {
	MayFill(from string) error
	MayRead(to string) error
}

// Fetch brings what is missing of an image that the caller has.
func (s *LayerService) Fetch(request *api.FetchRequest,
	reply grpc.ServerStreamingServer[api.FetchReply]) error {
	from, err := Caller(reply.Context())
	if err == nil {
		err = s.Rules.MayFill(from)
	}
	if err != nil {
		return err
	}
	node, err := s.Nodes.Find(from)
	if err != nil {
		return Error(err)
	}
	return Error(s.Mover.Fetch(reply.Context(), node, request,
		func(layers migration.Layers) error {
			document, err := json.Marshal(layers)
			if err != nil {
				return err
			}
			return reply.Send(&api.FetchReply{LayersJson: document})
		}))
}

// Layers tells which of some layers are here.
func (s *LayerService) Layers(ctx context.Context, request *api.LayersRequest) (*api.LayersReply, error) {
	from, err := Caller(ctx)
	if err == nil {
		err = s.Rules.MayRead(from)
	}
	if err != nil {
		return nil, err
	}
	if len(request.DiffIds) > layers.Max {
		return nil, Error(fmt.Errorf("%w: %d layers; the limit is %d", api.ErrInvalid,
			len(request.DiffIds), layers.Max))
	}
	return &api.LayersReply{Layers: s.Mover.Here(request.DiffIds)}, nil
}
