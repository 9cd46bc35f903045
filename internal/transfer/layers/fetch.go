package layers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fetch"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// The kinds of holders of layers, beside registries.
const (
	kindSource = "source" // the node that has the use for them here
	kindNode   = "node"   // any other
)

const (
	// askPatience bounds the question which other nodes have layers: who does not answer in this
	// time is not near.
	askPatience = time.Second
	// fetchedEvery is how often the caller of Fetch hears how far it is.
	fetchedEvery = 500 * time.Millisecond
	// maxImageConfig and maxImageNames bound what a peer says of an image. A gRPC message has at most 4 MiB.
	maxImageConfig = 3 << 20
	maxImageNames  = 32
	maxManifests   = 512 << 10
)

// Fetch brings what is missing of an image, and tells how far it is, and at the end what has become of it.
func (m *Mover) Fetch(
	ctx context.Context, from identity.Node, request *api.FetchRequest, tell func(migration.Layers) error,
) error {
	if err := checkFetch(request); err != nil {
		return err
	}
	if request.Engine != "" {
		return m.fetchForEngine(ctx, from, request, tell)
	}
	release, err := m.images.Hold()
	if err != nil {
		return err
	}
	defer release()
	if err := m.takeImage(ctx, request); err != nil {
		return err
	}
	missing := m.Missing(request.Layers)
	told := migration.Layers{Count: len(request.Layers), Here: len(request.Layers) - len(missing)}
	if len(missing) == 0 {
		return tell(told)
	}
	if err := m.checkRoom(missing); err != nil {
		return err
	}
	running := fetch.New(fetch.Config{
		Store: m.images, Layers: m.wantedLayers(request, missing),
		Holders: m.holders(ctx, from, request, missing), Patience: m.patience,
	})
	err = m.follow(ctx, running, func() error {
		told.Taken = describeTaken(running.Taken())
		return tell(told)
	})
	m.speeds.learn(running.Taken())
	if err == nil {
		m.letWrite(ctx, func() error { return files.Sync(m.state) })
	}
	return err
}

// writePatience is how long a fetch waits in the end for the disk.
const writePatience = 2 * time.Second

// letWrite waits until what has come is on the disk, mostly: a freeze follows, which has records
// that must be on it, and the file system writes one after the other. It all has to be there before
// the source's copy goes, so nothing is written that would not be.
func (m *Mover) letWrite(ctx context.Context, sync func() error) {
	written := make(chan struct{})
	go guard.Logged(m.log, func() {
		defer close(written)
		if err := sync(); err != nil {
			m.log.Debug("layers are not written yet", "error", err)
		}
	})()
	timer := time.NewTimer(writePatience)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// follow runs a fetch and reports now and then, and when it has ended well.
func (m *Mover) follow(ctx context.Context, running *fetch.Fetch, report func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := guard.Go(func() error { return running.Run(ctx) })
	ticker := time.NewTicker(fetchedEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return errors.Join(err, report())
		case <-ticker.C:
			if err := report(); err != nil { // who asked for it is there no more
				cancel()
				return errors.Join(err, <-ended)
			}
		}
	}
}

// checkFetch refuses a request that makes no sense.
func checkFetch(request *api.FetchRequest) error {
	if len(request.ConfigJson) > maxImageConfig || len(request.Names) > maxImageNames {
		return fmt.Errorf("%w: an image with a configuration of %d bytes and %d names",
			api.ErrInvalid, len(request.ConfigJson), len(request.Names))
	}
	return errors.Join(checkManifests(request.Manifests), Check(request.Layers))
}

// checkManifests refuses what is more than is sent.
func checkManifests(manifests [][]byte) error {
	bytes := 0
	for _, one := range manifests {
		bytes += len(one)
	}
	if bytes > maxManifests {
		return fmt.Errorf("%w: its manifests have %d bytes, and more than %d are not sent",
			api.ErrInvalid, bytes, maxManifests)
	}
	return nil
}

// Check refuses what no image has.
func Check(layers []*api.Layer) error {
	const most = 1 << 50
	if len(layers) > 2*Max { // each may be kept as something else, too
		return fmt.Errorf("%w: %d layers, at most %d are possible", api.ErrInvalid, len(layers), 2*Max)
	}
	for _, layer := range layers {
		if layer.ArchiveBytes < 0 || layer.StoredBytes < 0 || layer.ArchiveBytes > most ||
			layer.StoredBytes > most {
			return fmt.Errorf("%w: sizes are from 0 to %d bytes", api.ErrInvalid, int64(most))
		}
		if err := image.CheckDigest(layer.DiffId); err != nil {
			return fmt.Errorf("%w: %w", api.ErrInvalid, err)
		}
	}
	return nil
}

// takeImage takes what an image says of itself, if it is not here. A peer does not name images that
// were here before.
func (m *Mover) takeImage(ctx context.Context, request *api.FetchRequest) error {
	if len(request.ConfigJson) == 0 || m.images.Has(request.Image) {
		return nil
	}
	if err := m.images.ImportConfig(ctx, request.Image, request.ConfigJson); err != nil {
		return err
	}
	for _, name := range request.Names {
		if err := m.images.ImportName(request.Image, name); err != nil {
			return err
		}
	}
	if len(request.OriginJson) == 0 {
		return nil
	}
	origin, err := image.ParseOrigin(request.OriginJson)
	if err != nil {
		return err
	}
	return m.images.ImportOrigin(request.Image, origin)
}

// Missing lists those layers that are not here.
func (m *Mover) Missing(layers []*api.Layer) (missing []*api.Layer) {
	for _, layer := range layers {
		if !m.images.HasLayer(layer.DiffId) {
			missing = append(missing, layer)
		}
	}
	return missing
}

// Need is what layers take on the disk: their files, and the archives that are kept.
func Need(layers []*api.Layer) (bytes int64) {
	for _, layer := range layers {
		bytes += layer.ArchiveBytes + layer.StoredBytes
	}
	return bytes
}

// checkRoom refuses layers that this node has no room for, or of which nobody says how large they
// are: what comes has no end then.
func (m *Mover) checkRoom(missing []*api.Layer) error {
	for _, layer := range missing {
		if layer.ArchiveBytes <= 0 {
			return fmt.Errorf("%w: layer %s comes without the size of its archive",
				api.ErrInvalid, layer.DiffId)
		}
	}
	return files.CheckSpace(m.state, Need(missing))
}

// smallLayer is a layer that is not worth a look at others that may be similar.
const smallLayer = 1 << 20

func (m *Mover) wantedLayers(request *api.FetchRequest, layers []*api.Layer) []fetch.Layer {
	wanted := make([]fetch.Layer, len(layers))
	for i, layer := range layers {
		wanted[i] = fetch.Layer{DiffID: layer.DiffId, Archive: layer.ArchiveBytes}
		if layer.ArchiveBytes > smallLayer {
			wanted[i].Similar = m.images.Similar(request.Image, request.Names, layer.DiffId,
				layer.ArchiveBytes)
		}
	}
	return wanted
}

func describeTaken(all []fetch.Taken) []migration.LayersTaken {
	var told []migration.LayersTaken
	for _, taken := range all {
		one := migration.LayersTaken{
			Kind: taken.Kind, From: taken.Name, Layers: taken.Layers, Partly: taken.Partly,
			Bytes: taken.Bytes,
		}
		if taken.Failed != nil {
			one.Error = api.Plain(taken.Failed)
		}
		told = append(told, one)
	}
	return told
}

// holders are all that may have some of the layers: the caller, other nodes, the registry.
func (m *Mover) holders(
	ctx context.Context, from identity.Node, request *api.FetchRequest, missing []*api.Layer,
) []*fetch.Holder {
	source := m.layerHolder(from, kindSource, request.Transfer, missing)
	source.Speed = m.speeds.of(source, request.BandwidthBitsPerSecond)
	if request.BandwidthBitsPerSecond > 0 {
		source.Speed = request.BandwidthBitsPerSecond // just measured, and limited if the user said so
	}
	holders := append(m.otherHolders(ctx, from.Name, missing), source)
	if origin, err := m.originOf(request); err == nil {
		registry := fetch.Registry(origin, 0)
		registry.Speed = m.speeds.of(registry, registryGuess)
		holders = append(holders, registry)
	}
	return holders
}

func (m *Mover) originOf(request *api.FetchRequest) (image.Origin, error) {
	if len(request.OriginJson) > 0 {
		return image.ParseOrigin(request.OriginJson)
	}
	return m.images.Origin(request.Image)
}

// otherHolders asks all nodes that can be reached which of the layers they have.
func (m *Mover) otherHolders(ctx context.Context, source string, missing []*api.Layer) []*fetch.Holder {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	request := &api.LayersRequest{}
	for _, layer := range missing {
		request.DiffIds = append(request.DiffIds, layer.DiffId)
	}
	var mu sync.Mutex
	var holders []*fetch.Holder
	var all sync.WaitGroup
	for _, node := range m.nodes.Others() {
		if node.Name == source || !m.nodes.Reaches(node.Name) {
			continue
		}
		all.Go(guard.Logged(m.log, func() {
			here, err := m.Ask(ctx, node, request)
			if err != nil || len(here) == 0 {
				return // It is asked for nothing then.
			}
			holder := m.layerHolder(node, kindNode, "", here)
			rtt, bandwidth := m.nodes.Link(node.Name)
			holder.Speed = m.speeds.of(holder, guessSpeed(rtt, bandwidth))
			mu.Lock()
			defer mu.Unlock()
			holders = append(holders, holder)
		}))
	}
	all.Wait()
	return holders
}

// Ask asks a node which of some layers it has.
func (m *Mover) Ask(
	ctx context.Context, node identity.Node, request *api.LayersRequest,
) ([]*api.Layer, error) {
	client, err := m.nodes.Client(node)
	if err != nil {
		return nil, err
	}
	reply, err := api.NewPeerClient(client).Layers(ctx, request)
	if err != nil {
		return nil, err
	}
	return reply.Layers, Check(reply.Layers)
}

// layerHolder is a node that has layers.
func (m *Mover) layerHolder(node identity.Node, kind, transfer string, layers []*api.Layer) *fetch.Holder {
	sizes := map[string]int64{}
	for _, layer := range layers {
		sizes[layer.DiffId] = layer.StoredBytes
	}
	return &fetch.Holder{
		Kind: kind, Name: node.Name, Layers: sizes,
		Open: func(ctx context.Context, diffIDs []string) (fetch.Delivery, error) {
			return m.openLayers(ctx, node, transfer, diffIDs)
		},
		OpenParts: func(ctx context.Context, diffID string) (fetch.Parts, error) {
			return m.openLayer(ctx, node, transfer, diffID)
		},
	}
}

// openLayers has a node send layers.
func (m *Mover) openLayers(
	ctx context.Context, node identity.Node, transfer string, diffIDs []string,
) (fetch.Delivery, error) {
	wanted, err := json.Marshal(diffIDs)
	if err != nil {
		return nil, err
	}
	data, err := m.dial(ctx, node, transfer)
	if err != nil {
		return nil, err
	}
	out := stream.NewSections(data, nil)
	if err := errors.Join(out.Whole(kindWant, "", wanted), data.Flush()); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return &delivery{data}, nil
}

// delivery are layers that come over a data connection.
type delivery struct{ data *stream.Session }

func (d *delivery) Next() (string, io.Reader, error) {
	section, err := d.data.Next()
	if errors.Is(err, io.EOF) {
		_ = d.data.Finish() // It says that all has come; the other node does not mind to hear nothing.
	}
	if err != nil {
		return "", nil, err
	}
	if section.Kind != KindLayer {
		return "", nil, fmt.Errorf("a section %.40q comes with layers", section.Kind)
	}
	return section.Name, section, nil
}

func (d *delivery) Close() error { return d.data.Close() }
