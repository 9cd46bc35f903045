package copies

import (
	"context"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/files/records"
)

// Have writes what the mirror has adopted, and reads all of it for that. Key is the source's. Dir is for
// files without names.
func (m *Mirror) Have(ctx context.Context, w io.Writer, key chunk.Key, dir string, workers int) error {
	config := Config{Dir: dir, Workers: workers}
	for _, t := range m.b.trees.all {
		if t.adopted {
			config.Trees = append(config.Trees, files.Tree{Kind: t.kind, Name: t.name, Path: t.path})
		}
	}
	s, err := NewSource(config)
	if err != nil {
		return err
	}
	defer s.Close()
	s.key, s.kind = key, records.FinalRound // what becomes shorter now is an error
	// A first round makes the manifest; sending it as well costs almost nothing.
	unsent := records.NewUnsent()
	for _, tree := range s.trees {
		if err := s.tree(ctx, tree, unsent, true); err != nil {
			return fmt.Errorf("read %s: %w", tree.Path, err)
		}
	}
	out, err := records.NewBlockWriter(w, nil)
	if err != nil {
		return err
	}
	k := &keptWriter{Encoder: records.Encoder{Out: out}, source: s}
	for _, tree := range s.trees {
		if err := k.tree(tree); err != nil {
			return err
		}
	}
	return k.end()
}
