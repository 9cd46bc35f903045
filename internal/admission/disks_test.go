package admission

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/kept"
)

func TestComing(t *testing.T) {
	definition := engine.Definition{Volumes: []engine.Volume{
		{Name: "data", Path: "/data"}, {Name: "shared", Path: "/s", Stays: true},
		{Kind: engine.Tmpfs, Path: "/fast"},
	}}
	offer := func(volumes ...migration.VolumeMoved) *api.Offer {
		document, err := json.Marshal(volumes)
		if err != nil {
			t.Fatal(err)
		}
		return &api.Offer{TreesBytes: 100, VolumesJson: document}
	}
	c, err := comingOf(definition, offer(migration.VolumeMoved{Volume: "data", Bytes: 30, Files: 3},
		migration.VolumeMoved{Volume: "/fast", Bytes: 20},
		migration.VolumeMoved{Volume: "shared", Bytes: 40}, migration.VolumeMoved{Volume: "none", Bytes: 50}))
	if err != nil || c.rest != 50 || c.memory != 20 || len(c.volumes) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []*api.Offer{
		offer(migration.VolumeMoved{Volume: "data", Bytes: -1}),
		offer(migration.VolumeMoved{Volume: "data", Files: -1}),
		offer(migration.VolumeMoved{Volume: "data", Bytes: 101}),
		offer(migration.VolumeMoved{Volume: "data", Bytes: 60},
			migration.VolumeMoved{Volume: "data", Bytes: 60}), {VolumesJson: []byte("{")},
	} {
		if c, err := comingOf(definition, bad); err == nil {
			t.Errorf("%s: %+v", bad.VolumesJson, c)
		}
	}
}

// TestRoomOfVolumes wants volumes to be compared with the disks that they come to.
func TestRoomOfVolumes(t *testing.T) {
	a := newNode(t)
	definition := engine.Definition{Volumes: []engine.Volume{
		{Kind: engine.Bind, Source: "/dev/shm/none/there", Path: "/x"},
		{Kind: engine.Tmpfs, Path: "/fast", SizeBytes: 1 << 20}}}
	examine := func(bytes, files, memory int64) int {
		t.Helper()
		coming := comingFiles{volumes: map[string]migration.VolumeMoved{"/x": {Bytes: bytes, Files: files},
			"/fast": {Bytes: memory}}}
		found, err := a.examineDisks(definition, coming, false)
		if err != nil {
			t.Fatal(err)
		}
		return len(append(found, a.examineTmpfs(definition, coming)...))
	}
	for _, one := range []struct {
		bytes, files, memory int64
		want                 int
	}{{1 << 10, 10, 1 << 10, 0}, {1 << 50, 10, 0, 1}, {1 << 10, 1 << 50, 0, 1}, {0, 0, 2 << 20, 1},
		{1 << 50, 0, 2 << 20, 2}} {
		if got := examine(one.bytes, one.files, one.memory); got != one.want {
			t.Errorf("%+v: %d problems", one, got)
		}
	}
}

func TestKeptCopiesGiveWay(t *testing.T) {
	a := newNode(t)
	full := false
	copies, err := kept.New(kept.Config{
		StateDir: a.stateDir, Keep: time.Hour, Full: func() bool { return full }, Log: a.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	a.kept = copies
	for i, digit := range []string{"1", "2", "3"} {
		one := broken(t, copies, containerOf(digit), "m"+digit, 5<<20)
		one.Broke = one.Broke.Add(time.Duration(i) * time.Second)
	}
	need := diskNeed{place: a.stateDir}
	var short *files.NoSpaceError
	if !errors.As(files.CheckSpace(need.place, math.MaxInt64), &short) {
		t.Fatal("there is room for everything")
	}
	need.bytes = short.Free + 6<<20 // others use this disk, too
	_, others := a.kept.Bytes(containerOf("3"))
	if others != 10<<20 || !a.yields(containerOf("3"), &need, others+1<<40, true) || len(copies.List()) != 3 {
		t.Errorf("a question: %d, %+v", others, copies.List())
	}
	a.yields(containerOf("3"), &need, others+1<<40, false)
	if list := copies.List(); len(list) == 0 || list[len(list)-1].ContainerID != containerOf("3") ||
		list[0].ContainerID == containerOf("1") {
		t.Errorf("left: %+v", list)
	}
	if need.bytes = math.MaxInt64 / 2; a.yields(containerOf("9"), &need, 5<<20, false) ||
		len(copies.List()) == 0 {
		t.Error("all is given up for what has no room anyway")
	}
	full = true
	copies.Expire(time.Now())
	if list := copies.List(); len(list) != 0 {
		t.Errorf("when the disk is full: %+v", list)
	}
}

func containerOf(digit string) string { return strings.Repeat(digit, 64) }

// broken keeps a volume of a container whose migration has failed.
func broken(t *testing.T, copies *kept.Copies, container, id string, bytes int) *kept.Copy {
	t.Helper()
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "f"), make([]byte, bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	one, err := copies.Begin(migration.Spec{ID: id, Container: container, Name: "web", Source: "a"})
	if err == nil {
		err = copies.Take(one, files.Tree{Kind: files.VolumeOf, Name: "data", Path: volume})
	}
	if err != nil {
		t.Fatal(err)
	}
	worth, err := copies.Assess(one, func(path string) (files.Size, error) {
		return files.TreeSize(t.Context(), files.Tree{Path: path})
	})
	if err != nil || !worth {
		t.Fatalf("it is not kept: %v", err)
	}
	copies.Release(one)
	return one
}
