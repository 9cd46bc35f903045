package copies

import (
	"context"
	"errors"
	"io"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// Place returns the directory of a tree. The directory must be empty, or must not exist (then its parent
// must). Place must refuse unexpected kinds and names, because they come from the stream.
type Place func(kind files.TreeKind, name string) (string, error)

// Mirror is the target's half of a copy in rounds. It makes the trees where they will be needed, and
// changes them in place as rounds say. Nobody may see them before the copy is complete. One goroutine at a
// time may use it.
//
// The stream is not trusted: it cannot lead out of the directories that place has named, no link is
// followed, no device is opened, and disk space stays within the limits. The worst effect of any stream is
// a wrong copy. Memory does not depend on the amount of data.
type Mirror struct {
	b     *builder
	state mirrorState
}

type mirrorState int

const (
	mirrorGrowing mirrorState = iota // takes rounds
	mirrorWhole                      // the last round came
	mirrorBroken                     // a round failed
	mirrorGone                       // closed or undone
)

// NewMirror makes nothing on disk yet.
func NewMirror(place Place, limits files.Limits) *Mirror {
	xattrs := fsys.NewXattrReader()
	return &Mirror{b: &builder{trees: trees{where: place, xattrs: xattrs}, xattrs: xattrs,
		used: files.Usage{Limits: limits}}}
}

// Round reads exactly one round from r and executes it. It reports whether that was the last one, after
// which the trees are complete. After an error there can be no further round: remove everything with Undo.
func (m *Mirror) Round(ctx context.Context, r io.Reader) (last bool, err error) {
	if m.state != mirrorGrowing {
		return false, errors.New("receive files: the copy has ended, there can be no further round")
	}
	m.b.ctx = ctx
	kind, err := records.ReadRound(ctx, r, m.b)
	if err == nil {
		err = m.b.nursery.wait()
	}
	if err == nil && kind == records.LastRound {
		err = m.b.trees.settle(&m.b.used)
	}
	m.b.pause()
	m.b.nursery.end(err)
	switch {
	case err != nil:
		m.state = mirrorBroken
	case kind == records.LastRound:
		m.state = mirrorWhole
	}
	return err == nil && kind == records.LastRound, err
}

// Undo removes everything that was made, and closes.
func (m *Mirror) Undo() error {
	m.state = mirrorGone
	return m.b.undo()
}

// Close releases the trees, and leaves them as they are.
func (m *Mirror) Close() error {
	if m.state != mirrorWhole {
		m.state = mirrorGone
	}
	m.b.close()
	return nil
}
