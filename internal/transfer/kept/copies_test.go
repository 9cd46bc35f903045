package kept

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
)

func openKept(t *testing.T, dir string) *Copies {
	t.Helper()
	k, err := New(Config{
		StateDir: dir, Keep: time.Hour, Full: func() bool { return false },
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// test keeps a volume of a container whose migration has failed.
func (k *Copies) test(t *testing.T, container, id string, bytes int) *Copy {
	t.Helper()
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "f"), make([]byte, bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	one, err := k.Begin(migration.Spec{ID: id, Container: container, Name: "web", Source: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if one == nil {
		return nil
	}
	if err := k.Take(one, files.Tree{Kind: files.VolumeOf, Name: "data", Path: volume}); err != nil {
		t.Fatal(err)
	}
	worth, err := k.Assess(one, func(path string) (files.Size,
		error) {
		return files.TreeSize(t.Context(), files.Tree{Path: path})
	})
	if err != nil {
		t.Fatal(err)
	}
	if !worth {
		k.End(one)
		return nil
	}
	k.Release(one)
	return one
}

func keptID(digit string) string { return strings.Repeat(digit, 64) }

func TestKeptCopiesSurviveTheAgent(t *testing.T) {
	dir := t.TempDir()
	k := openKept(t, dir)
	k.test(t, keptID("1"), "m1", 5<<20)
	k.test(t, keptID("2"), "m2", 6<<20)
	if k.test(t, keptID("3"), "m3", 1<<20) != nil {
		t.Error("little is kept")
	}
	for name, content := range map[string]string{keptID("4"): "", keptID("5"): "{}",
		keptID("6"): `{"container_id":"` + keptID("1") + `"}`, "x": "", keptDoomed + "7": ""} {
		if err := os.Mkdir(filepath.Join(k.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if content != "" {
			if err := os.WriteFile(filepath.Join(k.dir, name, keptRecord), []byte(content),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	k = openKept(t, dir)
	list := k.List()
	if len(list) != 2 || list[0].ContainerID != keptID("1") || list[0].Bytes != 5<<20 || list[1].Files != 1 ||
		list[1].Trees[0].Name != "data" {
		t.Errorf("%+v", list)
	}
	k.removing.Wait()
	if left, err := os.ReadDir(k.dir); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	own, others := k.Bytes(keptID("1"))
	if own != 5<<20 || others != 6<<20 {
		t.Errorf("%d of its own, %d of others", own, others)
	}
	k.Expire(time.Now().Add(2 * time.Hour))
	if list := k.List(); len(list) != 0 {
		t.Errorf("when its time is over: %+v", list)
	}
}

func TestKeptCopiesAreUsedByOneMigration(t *testing.T) {
	k := openKept(t, t.TempDir())
	id := keptID("1")
	k.test(t, id, "m1", 5<<20)
	if k.test(t, id, "m2", 7<<20) != nil || len(k.List()) != 1 || k.List()[0].Bytes != 5<<20 {
		t.Errorf("a migration that did not go on from what is kept replaces it: %+v", k.List())
	}
	one := k.Use(id)
	if one == nil || k.Use(id) != nil || k.Drop(id) || len(k.List()) != 0 {
		t.Errorf("used: %+v", one)
	}
	k.Elsewhere(id, "c")
	k.Expire(time.Now().Add(2 * time.Hour))
	trees, err := k.Trees(one, "m2")
	if err != nil || len(trees) != 1 || trees[0].Name != "data" || trees[0].Kind != files.VolumeOf {
		t.Errorf("%+v, %v", trees, err)
	}
	if _, err := os.Lstat(filepath.Join(trees[0].Path, "f")); err != nil {
		t.Error(err)
	}
	if err := os.Rename(filepath.Join(trees[0].Path, "f"), filepath.Join(trees[0].Path, "g")); err != nil {
		t.Fatal(err)
	}
	if again := k.test(t, id, "m2", 1<<20); again != one || one.Bytes != 6<<20 || one.Migration != "m2" ||
		len(one.Trees) != 1 {
		t.Errorf("what has come since is not there: %+v", again)
	}
	k.Elsewhere(id, "a")
	if len(k.List()) != 1 {
		t.Error("it is given up because the container is where it was")
	}
	k.Elsewhere(id, "c")
	if len(k.List()) != 0 {
		t.Error("it is kept although the container is elsewhere")
	}
}

// TestKeptCopiesInUse: what a migration uses nobody else gets or removes, and nothing of another migration is
// overwritten.
func TestKeptCopiesInUse(t *testing.T) {
	k := openKept(t, t.TempDir())
	id := keptID("1")
	k.test(t, id, "m1", 5<<20)
	if one, err := k.Begin(migration.Spec{ID: "m2", Container: id}); one != nil || err != nil {
		t.Errorf("another migration goes on from it: %+v, %v", one, err)
	}
	one := k.Use(id)
	if one == nil || k.Use(id) != nil || k.Drop(id) || len(k.List()) != 0 {
		t.Fatalf("%+v is used twice, removed or listed", one)
	}
	k.Expire(time.Now().Add(1000 * time.Hour))
	trees, err := k.Trees(one, "m2")
	if err != nil || len(trees) != 1 || one.Migration != "m2" {
		t.Fatalf("%+v, %v", trees, err)
	}
	if content, err := os.ReadFile(filepath.Join(trees[0].Path, "f")); err != nil || len(content) != 5<<20 {
		t.Errorf("%d bytes of the file, %v", len(content), err)
	}
	k.End(one)
	k.End(nil)
	if k.Use(id) != nil {
		t.Error("it is used after its end")
	}
}

// TestKeptCopiesFail: a directory that is none is an error, and so is a tree that cannot be measured.
func TestKeptCopiesFail(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{StateDir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("a file was taken for the directory")
	}
	k := openKept(t, t.TempDir())
	one := k.test(t, keptID("1"), "m1", 5<<20)
	failed := errors.New("it cannot be read")
	worth, err := k.Assess(one, func(string) (files.Size, error) { return files.Size{}, failed })
	if worth || !errors.Is(err, failed) {
		t.Errorf("%t, %v", worth, err)
	}
}
