package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/stream"
)

// A data connection of purpose "layers" is made by the node that has a use for them. It says which,
// and gets them in this order; or, of one layer, parts (layers_parts.go).
const (
	kindWant  = "want"  // content: DiffIDs as JSON
	kindLayer = "layer" // name: DiffID; content: its archive
)

// maxLayers is what an image can have, see package image.
const (
	maxLayers = 256
	maxWant   = maxLayers * 128
)

// transfer is one time that this node has another one fetch an image: layers that this one is asked
// for then count for it.
type transfer struct {
	id, node string
	limiter  *stream.Limiter
	sent     func(bytes int64) // is told of what leaves; nil: nobody

	mu       sync.Mutex
	counters stream.Counters // of its connections that have ended
}

// shares is the limit of what leaves; nil: there is none.
func (t *transfer) shares() *stream.Limiter {
	if t == nil {
		return nil
	}
	return t.limiter
}

// count is told of content that leaves.
func (t *transfer) count(bytes int64) {
	if t != nil && t.sent != nil {
		t.sent(bytes)
	}
}

func (t *transfer) ended(counters stream.Counters) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counters.Sent == nil {
		t.counters = counters
		return
	}
	t.counters = t.counters.Plus(counters)
}

// left is what has left over its connections.
func (t *transfer) left() stream.Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counters
}

// transfers are those that are under way.
type transfers struct {
	mu  sync.Mutex
	all map[string]*transfer
}

func newTransfers() *transfers { return &transfers{all: map[string]*transfer{}} }

// begin makes a transfer known, until done is called.
func (t *transfers) begin(one *transfer) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[one.id] = one
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.all, one.id)
	}
}

// find finds the transfer that a connection says that it is for. Nil: it is for none, as the layers
// are for another node's.
func (t *transfers) find(id, from string) (*transfer, error) {
	if id == "" {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.all[id]
	if one == nil || one.node != from {
		return nil, fmt.Errorf("%w: nothing is being brought to %s as %.40q", api.ErrInvalid, from, id)
	}
	return one, nil
}

// serveLayers sends the layers that the other node wants, and waits until it has taken them.
func (m *mover) serveLayers(ctx context.Context, data *stream.Session, to *transfer, peer string) error {
	stop := context.AfterFunc(ctx, func() { _ = data.Close() })
	defer stop()
	defer func() { to.ended(data.Counters()) }()
	section, err := data.Next()
	switch {
	case err != nil:
	case section.Kind == kindCut:
		err = m.serveParts(ctx, data, to, peer, section.Name)
	default:
		var wanted []string
		if wanted, err = readWant(section); err == nil {
			err = m.sendLayers(ctx, data, to, peer, wanted)
		}
	}
	if errors.Is(err, errUnwanted) {
		return nil
	}
	if err != nil {
		return errors.Join(err, data.Abort(api.Plain(err)))
	}
	_, err = data.Next()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func readWant(section stream.Section) ([]string, error) {
	content, err := io.ReadAll(io.LimitReader(section, maxWant+1))
	if err != nil {
		return nil, err
	}
	var wanted []string
	if section.Kind != kindWant || len(content) > maxWant || json.Unmarshal(content, &wanted) != nil || len(wanted) > maxLayers {
		return nil, fmt.Errorf("%w: a connection for layers begins with a list of at most %d", api.ErrInvalid, maxLayers)
	}
	return wanted, nil
}

// takingPatience is how long the other node may take nothing: while it does not, no image can be
// removed here.
const takingPatience = time.Minute

func (m *mover) sendLayers(ctx context.Context, data *stream.Session, to *transfer, peer string, wanted []string) error {
	taken := time.AfterFunc(takingPatience, func() { _ = data.Abort(fmt.Sprintf("nothing was taken for %s", takingPatience)) })
	defer taken.Stop()
	out := stream.NewSections(data, func(bytes int64) {
		taken.Reset(takingPatience)
		to.count(bytes)
	})
	for _, layer := range wanted {
		section, err := out.Begin(kindLayer, layer)
		if err != nil {
			return err
		}
		err = m.exportLayer(ctx, data, peer, layer, section)
		if err = errors.Join(err, section.Close()); err != nil {
			return err
		}
	}
	return data.Finish()
}

// exportLayer sends a layer's archive: as it is kept if that is compressed, otherwise compressed as
// the link demands.
func (m *mover) exportLayer(ctx context.Context, data *stream.Session, peer, diffID string, section io.Writer) error {
	_, keeper, err := m.layer(diffID)
	if err != nil {
		return err
	}
	codec := stream.None
	if keeper != layerKeeper(m.images) {
		_, bandwidth := m.nodes.Link(peer)
		codec = stream.Choose(bandwidth, m.cores).Codec
	}
	if err := data.SetCodec(codec); err != nil {
		return err
	}
	return keeper.ExportLayer(ctx, diffID, section)
}

// layersHere describes those layers that are here.
func (m *mover) layersHere(diffIDs []string) []*api.Layer {
	var here []*api.Layer
	for _, diffID := range diffIDs {
		if info, _, err := m.layer(diffID); err == nil {
			here = append(here, &api.Layer{DiffId: diffID, ArchiveBytes: info.Archive, StoredBytes: info.Stored})
		}
	}
	return here
}
