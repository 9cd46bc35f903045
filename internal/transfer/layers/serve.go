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
	"github.com/godwit/godwit/internal/wire/stream"
)

// A data connection of purpose "layers" is made by the node that has a use for them. It says which,
// and gets them in this order; or, of one layer, parts (parts.go).
const (
	kindWant  = "want"  // content: DiffIDs as JSON
	KindLayer = "layer" // name: DiffID; content: its archive
)

// maxLayers is what an image can have, see package image.
const (
	Max     = 256
	maxWant = Max * 128
)

// Transfer is one time that this node has another one fetch an image: layers that this one is asked
// for then count for it.
type Transfer struct {
	ID, Node string
	Limiter  *stream.Limiter
	Sent     func(bytes int64) // is told of what leaves; nil: nobody

	mu       sync.Mutex
	counters stream.Counters // of its connections that have ended
}

// Shares is the limit of what leaves; nil: there is none.
func (t *Transfer) Shares() *stream.Limiter {
	if t == nil {
		return nil
	}
	return t.Limiter
}

// count is told of content that leaves.
func (t *Transfer) count(bytes int64) {
	if t != nil && t.Sent != nil {
		t.Sent(bytes)
	}
}

func (t *Transfer) ended(counters stream.Counters) {
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

// Left is what has left over its connections.
func (t *Transfer) Left() stream.Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counters
}

// transfers are those that are under way.
type transfers struct {
	mu  sync.Mutex
	all map[string]*Transfer
}

func newTransfers() *transfers { return &transfers{all: map[string]*Transfer{}} }

// begin makes a transfer known, until done is called.
func (t *transfers) begin(one *Transfer) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[one.ID] = one
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.all, one.ID)
	}
}

// find finds the transfer that a connection says that it is for. Nil: it is for none, as the layers
// are for another node's.
func (t *transfers) find(id, from string) (*Transfer, error) {
	if id == "" {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.all[id]
	if one == nil || one.Node != from {
		return nil, fmt.Errorf("%w: nothing is being brought to %s as %.40q", api.ErrInvalid, from, id)
	}
	return one, nil
}

// Serve sends the layers that the other node wants, and waits until it has taken them.
func (m *Mover) Serve(ctx context.Context, data *stream.Session, to *Transfer, peer string) error {
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
	if section.Kind != kindWant || len(content) > maxWant || json.Unmarshal(content, &wanted) != nil ||
		len(wanted) > Max {
		return nil, fmt.Errorf("%w: a connection for layers begins with a list of at most %d",
			api.ErrInvalid, Max)
	}
	return wanted, nil
}

// takingPatience is how long the other node may take nothing: while it does not, no image can be
// removed here.
const takingPatience = time.Minute

func (m *Mover) sendLayers(
	ctx context.Context, data *stream.Session, to *Transfer, peer string, wanted []string,
) error {
	taken := time.AfterFunc(takingPatience,
		func() { _ = data.Abort(fmt.Sprintf("nothing was taken for %s", takingPatience)) })
	defer taken.Stop()
	out := stream.NewSections(data, func(bytes int64) {
		taken.Reset(takingPatience)
		to.count(bytes)
	})
	for _, layer := range wanted {
		section, err := out.Begin(KindLayer, layer)
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
func (m *Mover) exportLayer(
	ctx context.Context, data *stream.Session, peer, diffID string, section io.Writer,
) error {
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

// Here describes those layers that are here.
func (m *Mover) Here(diffIDs []string) []*api.Layer {
	var here []*api.Layer
	for _, diffID := range diffIDs {
		if info, _, err := m.layer(diffID); err == nil {
			here = append(here, &api.Layer{DiffId: diffID, ArchiveBytes: info.Archive,
				StoredBytes: info.Stored})
		}
	}
	return here
}
