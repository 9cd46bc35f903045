package layers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// maxTaken bounds how many holders a node may say that it has taken layers from.
const maxTaken = 1 << 10

// Bringing is an image that another node is to have.
type Bringing struct {
	Node      identity.Node
	Container engine.Definition // whose image it is
	Transfer  *Transfer
	Bandwidth float64 // of the way to the node, in bits per second; 0: not known
	Progress  func(migration.Layers)
}

// Bring has a node fetch what it lacks of an image, from whomever it can get it, and waits for that.
func (m *Mover) Bring(ctx context.Context, b Bringing) (migration.Layers, error) {
	defer m.transfers.begin(b.Transfer)()
	request, err := m.fetchRequest(ctx, b)
	if err != nil {
		return migration.Layers{}, err
	}
	client, err := m.nodes.Client(b.Node)
	if err != nil {
		return migration.Layers{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replies, err := api.NewPeerClient(client).Fetch(ctx, request)
	if err != nil {
		return migration.Layers{}, err
	}
	var layers migration.Layers
	for {
		reply, err := replies.Recv()
		if errors.Is(err, io.EOF) {
			return layers, nil
		}
		if err != nil {
			return layers, fmt.Errorf("%s could not get the image: %s", b.Node.Name, api.Plain(err))
		}
		if err := json.Unmarshal(reply.LayersJson, &layers); err != nil || len(layers.Taken) > maxTaken {
			return layers, errors.Join(fmt.Errorf("%s sent an answer of another kind about the image's "+
				"layers",
				b.Node.Name), err)
		}
		if b.Progress != nil {
			b.Progress(layers)
		}
	}
}

func (m *Mover) fetchRequest(ctx context.Context, b Bringing) (*api.FetchRequest, error) {
	found, err := m.describeImage(ctx, b.Container)
	if err != nil {
		return nil, err
	}
	if len(found.Config) > maxImageConfig {
		return nil, fmt.Errorf("image %s: its configuration has %d bytes, and more than %d are not sent",
			found.ID, len(found.Config), maxImageConfig)
	}
	if err := checkManifests(found.Manifests); err != nil {
		return nil, fmt.Errorf("image %s: %w", found.ID, err)
	}
	request := &api.FetchRequest{
		Transfer: b.Transfer.ID, Engine: b.Container.EngineName, Namespace: b.Container.Namespace,
		Image: found.ID, ConfigJson: found.Config, Names: found.Names[:min(len(found.Names), maxImageNames)],
		Layers:    m.Here(slices.Concat(b.Container.Layers, found.Blobs)),
		Manifests: found.Manifests, BandwidthBitsPerSecond: b.Bandwidth,
	}
	origin, err := m.images.Origin(found.ID)
	if request.Engine != "" || errors.Is(err, image.ErrNotFound) {
		return request, nil
	}
	if err != nil {
		return nil, err
	}
	request.OriginJson, err = json.Marshal(origin)
	return request, err
}

// describeImage is the image of a container of this node.
func (m *Mover) describeImage(ctx context.Context, container engine.Definition) (engine.Image, error) {
	images, err := m.engines.ImagesOf(container.EngineName)
	if err != nil {
		return engine.Image{}, err
	}
	if images != nil {
		return images.Image(ctx, container.ImageID)
	}
	config, err := m.images.Config(container.ImageID)
	if err != nil {
		return engine.Image{}, err
	}
	found, err := m.images.Resolve(container.ImageID)
	return engine.Image{ID: container.ImageID, Names: found.Names, Config: config, Layers: found.Layers}, err
}
