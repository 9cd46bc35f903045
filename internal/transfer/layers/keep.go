package layers

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/files/parts"
)

// layerKeeper has layers on this node. A layer is the same whoever keeps it, so any of them serves any node.
type layerKeeper interface {
	Layer(diffID string) (image.LayerInfo, error)
	// ExportLayer writes a layer's archive, compressed or not.
	ExportLayer(ctx context.Context, diffID string, w io.Writer) error
	Parts(ctx context.Context, diffID string, emit func([]parts.Part) error) error
	ExportParts(ctx context.Context, diffID string, list []parts.Part, runs []parts.Run, w io.Writer) error
	OpenArchive(diffID string) (io.ReadCloser, error)
}

// layer finds a layer, and who keeps it: the agent's store before engines, because it has it compressed.
func (m *Mover) layer(diffID string) (image.LayerInfo, layerKeeper, error) {
	info, err := m.images.Layer(diffID)
	if err == nil {
		return info, m.images, nil
	}
	for _, images := range m.engines.Images() {
		keeper := engineLayers{images}
		if info, failed := keeper.Layer(diffID); failed == nil {
			return info, keeper, nil
		} else if !errors.Is(failed, engine.ErrNoLayer) && !errors.Is(failed, engine.ErrAway) {
			err = errors.Join(err, failed)
		}
	}
	return image.LayerInfo{}, nil, err
}

// OnNode reports whether a layer need not come to this node, whoever has it.
func (m *Mover) OnNode(diffID string) bool {
	_, _, err := m.layer(diffID)
	return err == nil || m.spool.HasLayer(diffID)
}

// engineLayers are the layers of an engine that keeps images itself.
type engineLayers struct{ engine.Images }

// Layer tells how large a layer is. It is not kept as it is sent, which is compressed as the link demands.
func (e engineLayers) Layer(diffID string) (image.LayerInfo, error) {
	bytes, err := e.LayerBytes(diffID)
	return image.LayerInfo{DiffID: diffID, Size: bytes, Archive: bytes, Stored: bytes}, err
}

func (e engineLayers) ExportLayer(ctx context.Context, diffID string, w io.Writer) error {
	return e.read(ctx, diffID, func(archive io.Reader) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, archive, make([]byte, 256<<10))
		return err
	})
}

func (e engineLayers) Parts(ctx context.Context, diffID string, emit func([]parts.Part) error) error {
	bytes, err := e.LayerBytes(diffID)
	if err != nil {
		return err
	}
	return e.read(ctx, diffID, func(archive io.Reader) error { return parts.Cut(archive, bytes, emit) })
}

func (e engineLayers) ExportParts(
	ctx context.Context, diffID string, list []parts.Part, runs []parts.Run, w io.Writer,
) error {
	return e.read(ctx, diffID, func(archive io.Reader) error { return parts.Pick(archive, list, runs, w) })
}

func (e engineLayers) OpenArchive(diffID string) (io.ReadCloser, error) { return e.OpenLayer(diffID) }

// read has something done with a layer's archive, which ends with ctx.
func (e engineLayers) read(ctx context.Context, diffID string, do func(io.Reader) error) error {
	archive, err := e.OpenLayer(diffID)
	if err != nil {
		return err
	}
	defer archive.Close()
	stop := context.AfterFunc(ctx, func() { _ = archive.Close() })
	defer stop()
	if err := do(struct{ io.Reader }{archive}); err != nil {
		return fmt.Errorf("read layer %s: %w", diffID, err)
	}
	return nil
}
