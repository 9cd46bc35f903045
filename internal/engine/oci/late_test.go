package oci

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/door"
)

// TestAside: what an engine writes while it starts a container is not in what has come, and a directory looks to it as it did.
func TestAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "upper")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o751|os.ModeSticky), os.Lchown(dir, 7, 8)); err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "came"), nil, 0o600), setAside(dir)); err != nil {
		t.Fatal(err)
	}
	shown, err := os.Stat(dir)
	if err != nil || shown.Mode() != was.Mode() || os.SameFile(shown, was) {
		t.Errorf("%v, %v; was %v", shown, err, was)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "mtab"), nil, 0o600), putBack([]string{dir})); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "came", asideOf(dir): "mtab"} {
		if left, err := os.ReadDir(path); err != nil || len(left) != 1 || left[0].Name() != want {
			t.Errorf("in %s: %v, %v", path, left, err)
		}
	}
	if err := setAside(dir); err == nil {
		t.Error("what is aside is replaced")
	}
}

// TestStartedOnce: what is over is not started, nor anything twice, and nothing is restored that was not.
func TestStartedOnce(t *testing.T) {
	a := &arrival{engine: awayEngine(t), expected: Expected{Late: true}}
	if a.waits() == nil {
		t.Error("an engine waits that was told nothing")
	}
	if err := a.FillFrom(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := a.begin(); err != nil {
		t.Error(err)
	}
	if _, err := a.begin(); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("twice: %v", err)
	}
	over := &arrival{engine: awayEngine(t)}
	if err := over.Close(); err != nil {
		t.Error(err)
	}
	if _, err := over.begin(); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("when it is over: %v", err)
	}
}

// TestUndisturbed: what somebody else has taken away is not restored upon.
func TestUndisturbed(t *testing.T) {
	place, err := door.At(t.TempDir(), "web")
	if err != nil {
		t.Fatal(err)
	}
	a := &arrival{place: place, shm: t.TempDir()}
	if err := os.MkdirAll(place.Images(), 0o700); err != nil {
		t.Fatal(err)
	}
	if a.shmMade, err = os.Stat(a.shm); err != nil {
		t.Fatal(err)
	}
	if err := a.undisturbed(); err != nil {
		t.Error(err)
	}
	a.shm = t.TempDir()
	if a.undisturbed() == nil {
		t.Error("its /dev/shm is another one")
	}
	a.shmMade = nil
	if err := os.Remove(place.Images()); err != nil {
		t.Fatal(err)
	}
	if a.undisturbed() == nil {
		t.Error("its place is gone")
	}
}
