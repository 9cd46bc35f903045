package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
)

func openKept(t *testing.T, dir string) *keptCopies {
	t.Helper()
	k, err := newKeptCopies(KeptConfig{
		StateDir: dir, Keep: time.Hour, Full: func() bool { return false }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// test keeps a volume of a container whose migration has failed.
func (k *keptCopies) test(t *testing.T, container, id string, bytes int) *keptCopy {
	t.Helper()
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "f"), make([]byte, bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	one, err := k.begin(migration.Spec{ID: id, Container: container, Name: "web", Source: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if one == nil {
		return nil
	}
	if err := k.take(one, files.Tree{Kind: files.VolumeOf, Name: "data", Path: volume}); err != nil {
		t.Fatal(err)
	}
	worth, err := k.settle(one, func(path string) (files.Size, error) { return files.TreeSize(t.Context(), files.Tree{Path: path}) })
	if err != nil {
		t.Fatal(err)
	}
	if !worth {
		k.end(one)
		return nil
	}
	k.release(one)
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
	for name, content := range map[string]string{keptID("4"): "", keptID("5"): "{}", keptID("6"): `{"container_id":"` + keptID("1") + `"}`, "x": "", keptDoomed + "7": ""} {
		if err := os.Mkdir(filepath.Join(k.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if content != "" {
			if err := os.WriteFile(filepath.Join(k.dir, name, keptRecord), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	k = openKept(t, dir)
	list := k.list()
	if len(list) != 2 || list[0].ContainerID != keptID("1") || list[0].Bytes != 5<<20 || list[1].Files != 1 || list[1].Trees[0].Name != "data" {
		t.Errorf("%+v", list)
	}
	k.removing.Wait()
	if left, err := os.ReadDir(k.dir); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	own, others := k.bytes(keptID("1"))
	if own != 5<<20 || others != 6<<20 {
		t.Errorf("%d of its own, %d of others", own, others)
	}
	k.expire(time.Now().Add(2 * time.Hour))
	if list := k.list(); len(list) != 0 {
		t.Errorf("when its time is over: %+v", list)
	}
}

func TestKeptCopiesAreUsedByOneMigration(t *testing.T) {
	k := openKept(t, t.TempDir())
	id := keptID("1")
	k.test(t, id, "m1", 5<<20)
	if k.test(t, id, "m2", 7<<20) != nil || len(k.list()) != 1 || k.list()[0].Bytes != 5<<20 {
		t.Errorf("a migration that did not go on from what is kept replaces it: %+v", k.list())
	}
	one := k.use(id)
	if one == nil || k.use(id) != nil || k.drop(id) || len(k.list()) != 0 {
		t.Errorf("used: %+v", one)
	}
	k.elsewhere(id, "c")
	k.expire(time.Now().Add(2 * time.Hour))
	trees, err := k.trees(one, "m2")
	if err != nil || len(trees) != 1 || trees[0].Name != "data" || trees[0].Kind != files.VolumeOf {
		t.Errorf("%+v, %v", trees, err)
	}
	if _, err := os.Lstat(filepath.Join(trees[0].Path, "f")); err != nil {
		t.Error(err)
	}
	if err := os.Rename(filepath.Join(trees[0].Path, "f"), filepath.Join(trees[0].Path, "g")); err != nil {
		t.Fatal(err)
	}
	if again := k.test(t, id, "m2", 1<<20); again != one || one.Bytes != 6<<20 || one.Migration != "m2" || len(one.Trees) != 1 {
		t.Errorf("what has come since is not there: %+v", again)
	}
	k.elsewhere(id, "a")
	if len(k.list()) != 1 {
		t.Error("it is given up because the container is where it was")
	}
	k.elsewhere(id, "c")
	if len(k.list()) != 0 {
		t.Error("it is kept although the container is elsewhere")
	}
}
