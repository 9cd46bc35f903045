package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Fetch brings what is missing of an image that the caller has.
func (s *peerService) Fetch(request *api.FetchRequest,
	reply grpc.ServerStreamingServer[api.FetchReply]) error {
	from, err := caller(reply.Context())
	if err == nil {
		err = s.agent.mayFill(from)
	}
	if err != nil {
		return err
	}
	node, err := s.agent.peers.Find(from)
	if err != nil {
		return wireError(err)
	}
	return wireError(s.agent.layers.Fetch(reply.Context(), node, request,
		func(layers migration.Layers) error {
			document, err := json.Marshal(layers)
			if err != nil {
				return err
			}
			return reply.Send(&api.FetchReply{LayersJson: document})
		}))
}

// Layers tells which of some layers are here.
func (s *peerService) Layers(ctx context.Context, request *api.LayersRequest) (*api.LayersReply, error) {
	from, err := caller(ctx)
	if err == nil {
		err = s.agent.mayRead(from)
	}
	if err != nil {
		return nil, err
	}
	if len(request.DiffIds) > layers.Max {
		return nil, wireError(fmt.Errorf("%w: %d layers; the limit is %d", errInvalid,
			len(request.DiffIds), layers.Max))
	}
	return &api.LayersReply{Layers: s.agent.layers.Here(request.DiffIds)}, nil
}

// dialLayers makes a connection to a node for layers.
func (a *Agent) dialLayers(ctx context.Context, node identity.Node, transfer string) (*stream.Session,
	error) {
	conn, err := wire.Dial(ctx, a.id, node.Address, node.Name)
	if err != nil {
		return nil, err
	}
	data, err := stream.Open(ctx, conn, stream.Hello{Migration: transfer, Purpose: purposeLayers},
		a.streamOptions())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return data, nil
}

// imagesOf is how the engine of a container keeps images; nil: the agent's store has them.
func (a *Agent) imagesOf(definition engine.Definition) (engine.Images, error) {
	return a.engines.ImagesOf(definition.EngineName)
}

// imageOf is the image of a container as far as its definition tells.
func imageOf(definition engine.Definition) engine.Image {
	return engine.Image{ID: definition.ImageID, Names: []string{definition.Image}, Layers: definition.Layers,
		Namespace: definition.Namespace}
}

// newLayers is what brings and serves layers for this agent. In spool are layers on their way to engines
// that keep images themselves.
func (a *Agent) newLayers(spool *image.Spool) *layers.Mover {
	return layers.New(layers.Config{
		Images: a.images, Spool: spool, Engines: a.engines, Nodes: a.peers, Dial: a.dialLayers,
		StateDir: a.config.StateDir, Patience: a.config.peerTimeout(), Cores: a.cores, Log: a.log,
	})
}
