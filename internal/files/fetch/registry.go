package fetch

import (
	"context"
	"io"

	"github.com/godwit/godwit/internal/files/image"
)

// KindRegistry is the kind of holders that are registries.
const KindRegistry = "registry"

// Registry returns the registry from which an image came, as a holder.
func Registry(origin image.Origin, speed float64) *Holder {
	sizes := map[string]int64{}
	for _, layer := range origin.Layers {
		sizes[layer.DiffID] = layer.Size
	}
	return &Holder{
		Kind: KindRegistry, Name: origin.Registry(), Speed: speed, Layers: sizes,
		Open: func(ctx context.Context, diffIDs []string) (Delivery, error) {
			ctx, cancel := context.WithCancel(ctx)
			return &pulled{ctx: ctx, cancel: cancel, origin: origin, left: diffIDs}, nil
		},
	}
}

// pulled requests one layer after the other from a registry.
type pulled struct {
	ctx    context.Context //nolint:containedctx // Of all its requests: Close ends them.
	cancel context.CancelFunc
	origin image.Origin
	left   []string
	now    io.Closer
}

func (p *pulled) Next() (string, io.Reader, error) {
	if err := p.done(); err != nil {
		return "", nil, err
	}
	if len(p.left) == 0 {
		return "", nil, io.EOF
	}
	diffID := p.left[0]
	p.left = p.left[1:]
	content, err := p.origin.Open(p.ctx, diffID)
	if err != nil {
		return "", nil, err
	}
	p.now = content
	return diffID, content, nil
}

func (p *pulled) done() error {
	if p.now == nil {
		return nil
	}
	now := p.now
	p.now = nil
	return now.Close()
}

// Close ends the request that is under way; its connection goes with it.
func (p *pulled) Close() error {
	p.cancel()
	return nil
}
