package agent

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

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

// newLayers is what brings and serves layers for this agent. In spool are layers on their way to engines
// that keep images themselves.
func newLayers(a *Agent, spool *image.Spool) *layers.Mover {
	return layers.New(layers.Config{
		Images: a.images, Spool: spool, Engines: a.engines, Nodes: a.peers, Dial: a.dialLayers,
		StateDir: a.config.StateDir, Patience: a.config.peerTimeout(), Cores: a.cores, Log: a.log,
	})
}
