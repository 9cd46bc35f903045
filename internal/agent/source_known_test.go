package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// oneLayer is the directory of the only layer.
type oneLayer string

func (d oneLayer) LayerPath(string) (string, error) { return string(d), nil }

// TestDamagedLayerEndsNoMove: what the target cannot make of its layers goes in the freeze.
func TestDamagedLayerEndsNoMove(t *testing.T) {
	a := newTestAgent(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), memory.PageSize()/4)
	page := bytes.Clone(content[:memory.PageSize()])
	copy(page, "relocated")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "one.so"), content)
	// the target has no layer
	for answer, file := range map[string]string{state.HeardAll: "/none.so", state.HeardNone: "/one.so"} {
		near, far := streamtest.Pair(t)
		s := &source{agent: a}
		known := state.NewKnown(state.NewLayers(oneLayer(dir), []string{"layer"}))
		known.Add(memory.FilePage{Content: page, File: file})
		var sent []byte
		err := s.known.Send(known, func(content []byte) error {
			sent = content
			return nil
		})
		known.Release()
		failed := make(chan error, 1)
		go func() {
			_, err := (&target{agent: a, data: far}).takeKnown(bytes.NewReader(sent))
			failed <- err
		}()
		section, next := near.Next()
		err = errors.Join(err, next)
		if err != nil || section.Kind != kindHeard || section.Name != answer {
			t.Fatalf("%q %q is the answer, %v, not %s", section.Kind, section.Name, err, answer)
		}
		if err := errors.Join(<-failed, s.known.Hear(section.Name), s.awaitKnown(t.Context())); err != nil ||
			(s.known.Known() != nil) != (answer == state.HeardAll) {
			t.Errorf("%s: %v, known: %v", answer, err, s.known.Known() != nil)
		}
	}
}

// TestNothingKnown: a migration goes on without the pages that could go ahead.
func TestNothingKnown(t *testing.T) {
	s := &source{agent: newTestAgent(t), memory: &rounds.Rounds{},
		definition: engine.Definition{ID: "nowhere"}}
	if _, err := s.findKnown(t.Context()); err == nil {
		t.Fatal("the processes of no container were found")
	}
	if err := s.sendKnown(t.Context()); err != nil || s.known.Known() != nil {
		t.Errorf("it ends with %v, known: %v", err, s.known.Known())
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
