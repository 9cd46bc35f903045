package image

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/godwit/godwit/internal/kernel"
)

// bring adds a layer as a migration does.
func bring(t *testing.T, s *Store, raw []byte) (diffID string) {
	t.Helper()
	diffID = digestOf(raw)
	release, ok := s.Claim(diffID)
	if !ok {
		t.Fatal("somebody else brings it, or it is here")
	}
	defer release()
	check(t, s.BringLayer(t.Context(), diffID, bytes.NewReader(raw), int64(len(raw))))
	return diffID
}

// TestUnsynced: a layer can be used before it is on disk. Unsynced layers of an earlier boot are removed,
// those of an earlier agent are not.
func TestUnsynced(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	check(t, err)
	diffID := bring(t, s, base(t))
	if !s.HasLayer(diffID) {
		t.Fatal("it is not here")
	}
	layer, err := s.layerDir(diffID)
	check(t, err)
	mark := filepath.Join(layer, unsyncedName)
	synced := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(mark); errors.Is(err, os.ErrNotExist) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("it is still marked")
			}
		}
	}
	synced()
	boot, err := kernel.BootID()
	check(t, err)
	check(t, os.WriteFile(mark, []byte(boot), 0o600))
	s, err = Open(dir)
	check(t, err)
	synced()
	if !s.HasLayer(diffID) {
		t.Error("it was removed although the machine has not stopped")
	}
	check(t, os.WriteFile(mark, []byte("another boot"), 0o600))
	s, err = Open(dir)
	check(t, err)
	if s.HasLayer(diffID) {
		t.Error("half of it may be missing, and it is still here")
	}
	if left, err := os.ReadDir(s.layersDir()); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// TestSync: a layer that was reported as synced survives an immediate stop of the machine.
func TestSync(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	check(t, err)
	s.unsynced.syncing = true // a sync that never finishes
	diffID := bring(t, s, base(t))
	layer, err := s.layerDir(diffID)
	check(t, err)
	mark := filepath.Join(layer, unsyncedName)
	if _, err := os.Stat(mark); err != nil {
		t.Fatal(err)
	}
	check(t, s.Sync())
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the layer would be removed when the machine has been booted again: %v", err)
	}
	check(t, s.Sync())
}

// TestClaims: nobody fetches a layer that is here, or that another caller fetches.
func TestClaims(t *testing.T) {
	s := open(t)
	diffID := digestOf(base(t))
	release, ok := s.Claim(diffID)
	if !ok {
		t.Fatal("it cannot be claimed")
	}
	if _, again := s.Claim(diffID); again {
		t.Error("it was claimed twice")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Await(ctx, diffID); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for ever: %v", err)
	}
	release()
	if here, err := s.Await(t.Context(), diffID); here || err != nil {
		t.Errorf("here: %v, %v", here, err)
	}
	bring(t, s, base(t))
	if _, ok := s.Claim(diffID); ok {
		t.Error("it was claimed although it is here")
	}
	if here, err := s.Await(t.Context(), diffID); !here || err != nil {
		t.Errorf("here: %v, %v", here, err)
	}
	info, err := s.Layer(diffID)
	check(t, err)
	if info.Archive != int64(len(base(t))) || info.Stored == 0 {
		t.Errorf("%+v", info)
	}
	if len(s.making.making) > 0 {
		t.Errorf("kept, though nobody makes any: %d layers", len(s.making.making))
	}
}

// TestOrigin: an image's origin is kept, and checked when a peer reports it.
func TestOrigin(t *testing.T) {
	s := open(t)
	image := load(t, s, dockerArchive(t, "app:1", base(t)))[0]
	if _, err := s.Origin(image.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("it came from no registry: %v", err)
	}
	good := Origin{Repository: "registry.example/app",
		Layers: []OriginBlob{{DiffID: image.Layers[0], Digest: image.ID, Size: 1}}}
	check(t, s.ImportOrigin(image.ID, good))
	got, err := s.Origin(image.ID)
	check(t, err)
	if diff := cmp.Diff(got, good); diff != "" || got.Registry() != "registry.example" {
		t.Error(diff)
	}
	for name, document := range map[string]string{
		"no document": "x",
		"no registry": `{"repository":"Not A Name"}`,
		"a path":      `{"repository":"registry.example/../x"}`,
		"a bad DiffID": `{"repository":"r.example/x","layers":[{"diff_id":"../x","digest":"` + image.ID +
			`"}]}`,
		"a bad digest": `{"repository":"r.example/x","layers":[{"diff_id":"` + image.ID +
			`","digest":"x"}]}`,
		"negative size": `{"repository":"r.example/x","layers":[{"diff_id":"` + image.ID + `","digest":"` +
			image.ID + `","size_bytes":-1}]}`,
		"too long": string(bytes.Repeat([]byte(" "), maxOrigin+1)),
	} {
		if _, err := ParseOrigin([]byte(document)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzOrigin parses a peer's report of an image's origin.
func FuzzOrigin(f *testing.F) {
	f.Add([]byte(`{"repository":"registry.example/app","layers":[]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		origin, err := ParseOrigin(document)
		if err == nil && origin.Registry() == "" {
			t.Errorf("accepted without a registry: %q", document)
		}
	})
}
