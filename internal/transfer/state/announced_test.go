package state

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

// oneLayer is the directory of the only layer.
type oneLayer string

func (d oneLayer) LayerPath(string) (string, error) { return string(d), nil }

// knownPage is one page that is nearly that of a file.
func knownPage(t *testing.T) *Known {
	t.Helper()
	dir := t.TempDir()
	content := bytes.Repeat([]byte("0123456789abcdef"), memory.PageSize()/4)
	if err := os.WriteFile(filepath.Join(dir, "one.so"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	page := bytes.Clone(content[:memory.PageSize()])
	copy(page, "relocated")
	known := NewKnown(NewLayers(oneLayer(dir), []string{"layer"}))
	known.Add(memory.FilePage{Content: page, File: "/one.so"})
	t.Cleanup(known.Release)
	return known
}

// TestAnnounced: pieces refer to what the target says that it has, and to nothing else.
func TestAnnounced(t *testing.T) {
	for answer, want := range map[string]bool{HeardAll: true, HeardNone: false} {
		var a Announced
		var sent []byte
		err := a.Send(knownPage(t), func(content []byte) error {
			sent = content
			return nil
		})
		if err != nil || len(sent) == 0 {
			t.Fatalf("%d bytes were sent: %v", len(sent), err)
		}
		if err := a.Hear(answer); err != nil {
			t.Error(err)
		}
		if a.Hear(answer) == nil {
			t.Error("the target answers twice")
		}
		if refused, err := a.Await(t.Context()); refused == want || err != nil || (a.Known() != nil) != want {
			t.Errorf("%s: refused %t, %v, known %t", answer, refused, err, a.Known() != nil)
		}
	}
}

// TestAnnouncedNothing: nobody waits for an answer about nothing, and no answer is taken that makes no sense.
func TestAnnouncedNothing(t *testing.T) {
	var a Announced
	never := func([]byte) error { return errors.New("nothing is sent") }
	if err := a.Send(NewKnown(NewLayers(oneLayer(t.TempDir()), nil)), never); err != nil {
		t.Error(err)
	}
	if refused, err := a.Await(t.Context()); refused || err != nil || a.Known() != nil {
		t.Errorf("%t, %v", refused, err)
	}
	if a.Hear(HeardAll) == nil {
		t.Error("an answer about nothing")
	}
	if err := a.Send(knownPage(t), never); err == nil {
		t.Error("a link that fails is not told")
	}
	if a.Hear("some") == nil {
		t.Error("an answer that makes no sense")
	}
	stopped, stop := context.WithCancelCause(t.Context())
	cause := errors.New("the step was interrupted")
	stop(cause)
	if _, err := a.Await(stopped); !errors.Is(err, cause) {
		t.Errorf("it waits: %v", err)
	}
}
