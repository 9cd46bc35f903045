package files

import (
	"context"
	"errors"
	"io"
)

// Limits bound what a copy may take on disk; zero means no limit.
type Limits struct {
	Bytes   int64 // of regular files, without holes
	Entries int64 // names, one for each hard link
}

// Place says in which directory a tree belongs. The directory must be empty, or must not exist
// (then its parent must). It must refuse kinds and names that it does not expect: they come from
// the stream.
type Place func(kind TreeKind, name string) (string, error)

// Mirror is the target's half of a copy in rounds. It makes the trees in the place where they will
// be needed, and changes them as rounds say, in place, which nobody may see before the copy is
// complete. One goroutine at a time may use it.
//
// The stream is not trusted: nothing in it leads out of the directories that place named, no link
// is followed, no device is opened, and what is on disk stays within the limits. Whatever a stream
// says, the worst that it can do is to make a wrong copy. Memory does not depend on how much there
// is.
type Mirror struct {
	b     *builder
	state mirrorState
}

type mirrorState int

const (
	mirrorGrowing mirrorState = iota // takes rounds
	mirrorWhole                      // the last round came
	mirrorBroken                     // a round failed half-way
	mirrorGone                       // closed or undone
)

// NewMirror makes nothing yet.
func NewMirror(place Place, limits Limits) *Mirror {
	return &Mirror{b: &builder{where: place, used: usage{limits: limits}, xattrs: newXattrReader()}}
}

// Round reads exactly one round from r and does what it says. It tells whether that was the last
// one, after which the trees are complete. After an error there can be no further round: what is
// there is to be removed by Undo.
func (m *Mirror) Round(ctx context.Context, r io.Reader) (last bool, err error) {
	if m.state != mirrorGrowing {
		return false, errors.New("receive files: the copy has ended, there can be no further round")
	}
	m.b.ctx = ctx
	kind, err := readRound(ctx, r, m.b)
	if err == nil {
		err = m.b.nursery.wait()
	}
	if err == nil && kind == lastRound {
		err = m.b.settle()
	}
	m.b.pause()
	m.b.nursery.end(err)
	switch {
	case err != nil:
		m.state = mirrorBroken
	case kind == lastRound:
		m.state = mirrorWhole
	}
	return err == nil && kind == lastRound, err
}

// Undo removes everything that was made, and closes.
func (m *Mirror) Undo() error {
	m.state = mirrorGone
	return m.b.undo()
}

// Close lets go of the trees, and leaves them as they are.
func (m *Mirror) Close() error {
	if m.state != mirrorWhole {
		m.state = mirrorGone
	}
	m.b.close()
	return nil
}
