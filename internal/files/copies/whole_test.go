package copies

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/godwit/godwit/internal/files"
)

// sendTrees writes trees as a single, final round.
func sendTrees(ctx context.Context, w io.Writer, trees []files.Tree, progress func(sent int64)) error {
	s, err := NewSource(Config{Trees: trees, Dir: os.TempDir()})
	if err != nil {
		return err
	}
	_, err = s.Last(ctx, w, progress)
	return errors.Join(err, s.Close())
}

// receiveTrees makes everything that comes until the last round, or nothing.
func receiveTrees(ctx context.Context, r io.Reader, place Place, limits files.Limits) error {
	m := NewMirror(place, limits)
	for {
		last, err := m.Round(ctx, r)
		switch {
		case err != nil:
			return errors.Join(err, m.Undo())
		case last:
			return m.Close()
		}
	}
}
