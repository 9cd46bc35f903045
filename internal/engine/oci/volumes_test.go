package oci

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// storing is the adapter of an engine with volumes. It maps each volume to its label and directory.
type storing struct {
	Adapter
	labels map[string]string
	dir    string
}

func (s storing) Name() string       { return "some" }
func (s storing) Programs() []string { return []string{"some"} }
func (s storing) Title() string      { return "Some" }
func (s storing) MadeFor(_ context.Context, name, label, value string) (bool, error) {
	return s.labels[name] == label+"="+value, nil
}

func (s storing) RemoveVolume(_ context.Context, name string) error {
	delete(s.labels, name)
	return nil
}

func (s storing) VolumePath(v engine.Volume) (string, error) {
	return filepath.Join(s.dir, v.Name), nil
}

// TestMadeVolumes checks that an arrival neither empties nor removes volumes that it has not made.
func TestMadeVolumes(t *testing.T) {
	id := strings.Repeat("a", 64)
	adapter := storing{labels: map[string]string{"own": idLabel + "=" + id, "other": "",
		"earlier": idLabel + "=x"}, dir: t.TempDir()}
	e := newEngine(Config{}, adapter)
	for name := range adapter.labels {
		file := filepath.Join(adapter.dir, name, "file")
		if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		d := engine.Definition{ID: id,
			Volumes: []engine.Volume{{Engine: "some", Kind: engine.Named, Name: name, Path: "/v"}}}
		err := e.emptyVolumes(t.Context(), d)
		if own := name == "own"; own != (err == nil) || own == durable.Exists(file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := e.endings.removeMade(t.Context(), id, []string{"own", "other", "earlier", "gone"}); err != nil {
		t.Error(err)
	}
	if _, is := adapter.labels["own"]; is || len(adapter.labels) != 2 {
		t.Errorf("left: %q", adapter.labels)
	}
}
