package files

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Final sends what has changed, when the container is frozen: it looks at everything while the container is
// dumped. The target does not say when it is in place: it restores nothing before.
func (s *Sender) Final(ctx context.Context, out *stream.Sections) error {
	return s.freeze(ctx, out, s.trees.Final)
}

// Last sends what the dump leaves in the file system, after Final.
func (s *Sender) Last(ctx context.Context, out *stream.Sections) error {
	return s.freeze(ctx, out, s.trees.Last)
}

// freezeRound is copies.Source's Final or Last.
type freezeRound func(ctx context.Context, w io.Writer, progress func(sent int64)) (copies.Stats, error)

func (s *Sender) freeze(ctx context.Context, out *stream.Sections, round freezeRound) error {
	section := &lateSection{out: out, kind: KindRound}
	stats, err := round(ctx, section, nil)
	if err = errors.Join(err, section.Close()); err != nil {
		return fmt.Errorf("files of the container: %w", err)
	}
	s.config.Figures.FileRound(stats, 0)
	return nil
}

// lateSection is a section that begins when there is much to send, or it ends: until then others
// can send theirs.
type lateSection struct {
	out     *stream.Sections
	kind    string
	early   []byte
	section io.WriteCloser // nil: it has not begun
}

// earlyBytes is kept back: as much as changes in a usual freeze.
const earlyBytes = 1 << 20

func (l *lateSection) Write(p []byte) (int, error) {
	if l.section == nil && len(l.early)+len(p) <= earlyBytes {
		l.early = append(l.early, p...)
		return len(p), nil
	}
	if err := l.begin(); err != nil {
		return 0, err
	}
	return l.section.Write(p)
}

func (l *lateSection) begin() (err error) {
	if l.section != nil {
		return nil
	}
	if l.section, err = l.out.Begin(l.kind, ""); err != nil {
		return err
	}
	_, err = l.section.Write(l.early)
	l.early = nil
	return err
}

// Close ends the section, and begins it before if need be. A section that has failed must not be
// taken for whole: its content ends by itself.
func (l *lateSection) Close() error {
	if err := l.begin(); err != nil && l.section == nil {
		return err
	}
	return l.section.Close()
}
