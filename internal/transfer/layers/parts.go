package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/files/fetch"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/files/parts"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// A data connection of purpose "layers" that begins with a section "cut" is for one layer of which
// parts are wanted.
const (
	kindCut    = "cut"    // name: DiffID
	KindParts  = "parts"  // the answer: all parts of the layer's archive, see parts.Append
	kindRuns   = "runs"   // content: those that are wanted, see parts.AppendRuns
	KindPieces = "pieces" // the answer: their content
)

// layerParts is a layer at another node, of which parts are wanted.
type layerParts struct {
	data *stream.Session
	out  *stream.Sections
}

var _ fetch.Parts = (*layerParts)(nil)

// openLayer has a node say of what parts a layer is.
func (m *Mover) openLayer(
	ctx context.Context, node identity.Node, transfer, diffID string,
) (fetch.Parts, error) {
	data, err := m.dial(ctx, node, transfer)
	if err != nil {
		return nil, err
	}
	p := &layerParts{data: data, out: stream.NewSections(data, nil)}
	if err := errors.Join(p.out.Whole(kindCut, diffID, nil), data.Flush()); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return p, nil
}

func (p *layerParts) List() (io.Reader, error) { return p.next(KindParts) }

func (p *layerParts) Want(runs []parts.Run) (io.Reader, error) {
	if err := errors.Join(p.out.Whole(kindRuns, "", parts.AppendRuns(nil, runs)),
		p.data.Finish()); err != nil {
		return nil, err
	}
	return p.next(KindPieces)
}

func (p *layerParts) next(kind string) (io.Reader, error) {
	section, err := p.data.Next()
	if err == nil && section.Kind != kind {
		err = fmt.Errorf("a section %.40q comes in place of %s", section.Kind, kind)
	}
	return section, err
}

func (p *layerParts) Close() error { return p.data.Close() }

// errUnwanted says that the other node has no use for parts of a layer, now that it knows which there are.
var errUnwanted = errors.New("no parts of it are wanted")

// serveParts says of what parts a layer is, and sends those that the other node wants.
func (m *Mover) serveParts(
	ctx context.Context, data *stream.Session, to *Transfer, peer, diffID string,
) error {
	if err := image.CheckDigest(diffID); err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	_, bandwidth := m.nodes.Link(peer)
	// these are not compressed as layers are
	if err := data.SetCodec(stream.Choose(bandwidth, m.cores).Codec); err != nil {
		return err
	}
	data.Adapt(nil)
	layer, keeper, err := m.layer(diffID)
	if err != nil {
		return err
	}
	// Nothing is sent while this node looks at parts that are not wanted, or the other one at
	// layers that it has.
	const looks = 4
	patience := takingPatience +
		looks*time.Duration(float64(layer.Archive)/fetch.LeastRead*float64(time.Second))
	taken := time.AfterFunc(patience,
		func() { _ = data.Abort(fmt.Sprintf("nothing was taken for %s", patience)) })
	defer taken.Stop()
	out := stream.NewSections(data, func(bytes int64) {
		taken.Reset(patience)
		to.count(bytes)
	})
	list, err := sendList(ctx, keeper, data, out, diffID)
	if err != nil {
		return err
	}
	section, err := data.Next()
	if err != nil {
		return errors.Join(errUnwanted, err)
	}
	runs, err := readRuns(section, len(list))
	if err != nil {
		return err
	}
	pieces, err := out.Begin(KindPieces, diffID)
	if err != nil {
		return err
	}
	err = keeper.ExportParts(ctx, diffID, list, runs, pieces)
	if err = errors.Join(err, pieces.Close()); err != nil {
		return err
	}
	return data.Finish()
}

// sendList sends the parts of a layer as they are found.
func sendList(
	ctx context.Context, keeper layerKeeper, data *stream.Session, out *stream.Sections, diffID string,
) (list []parts.Part, err error) {
	section, err := out.Begin(KindParts, diffID)
	if err != nil {
		return nil, err
	}
	err = keeper.Parts(ctx, diffID, func(more []parts.Part) error {
		list = append(list, more...)
		_, err := section.Write(parts.Append(nil, more))
		return errors.Join(err, data.Push())
	})
	if err != nil {
		return nil, errors.Join(err, section.Close())
	}
	return list, errors.Join(section.Close(), data.Flush())
}

func readRuns(section stream.Section, parted int) ([]parts.Run, error) {
	content, err := io.ReadAll(io.LimitReader(section, parts.MaxRuns+1))
	if err != nil {
		return nil, err
	}
	if section.Kind != kindRuns {
		return nil, fmt.Errorf("%w: a section %.40q in place of %s", api.ErrInvalid, section.Kind, kindRuns)
	}
	runs, err := parts.DecodeRuns(content, parted)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	return runs, nil
}
