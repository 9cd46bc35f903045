package agent

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/kept"
)

func TestKeptCopiesGiveWay(t *testing.T) {
	a := newVolumeAgent(t)
	full := false
	var err error
	a.kept, err = kept.New(kept.Config{
		StateDir: a.config.StateDir, Keep: time.Hour, Full: func() bool { return full }, Log: a.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, digit := range []string{"1", "2", "3"} {
		one := broken(t, a, containerOf(digit), "m"+digit, 5<<20)
		one.Broke = one.Broke.Add(time.Duration(i) * time.Second)
	}
	need := diskNeed{place: a.config.StateDir}
	var short *files.NoSpaceError
	if !errors.As(files.CheckSpace(need.place, math.MaxInt64), &short) {
		t.Fatal("there is room for everything")
	}
	need.bytes = short.Free + 6<<20 // others use this disk, too
	_, others := a.kept.Bytes(containerOf("3"))
	if others != 10<<20 || !a.yields(containerOf("3"), &need, others+1<<40, true) || len(a.kept.List()) != 3 {
		t.Errorf("a question: %d, %+v", others, a.kept.List())
	}
	a.yields(containerOf("3"), &need, others+1<<40, false)
	if list := a.kept.List(); len(list) == 0 || list[len(list)-1].ContainerID != containerOf("3") ||
		list[0].ContainerID == containerOf("1") {
		t.Errorf("left: %+v", list)
	}
	if need.bytes = math.MaxInt64 / 2; a.yields(containerOf("9"), &need, 5<<20, false) ||
		len(a.kept.List()) == 0 {
		t.Error("all is given up for what has no room anyway")
	}
	full = true
	a.kept.Expire(time.Now())
	if list := a.kept.List(); len(list) != 0 {
		t.Errorf("when the disk is full: %+v", list)
	}
}

func containerOf(digit string) string { return strings.Repeat(digit, 64) }

// broken keeps a volume of a container whose migration has failed.
func broken(t *testing.T, a *Agent, container, id string, bytes int) *kept.Copy {
	t.Helper()
	volume := t.TempDir()
	write(t, filepath.Join(volume, "f"), make([]byte, bytes))
	one, err := a.kept.Begin(migration.Spec{ID: id, Container: container, Name: "web", Source: "a"})
	if err == nil {
		err = a.kept.Take(one, files.Tree{Kind: files.VolumeOf, Name: "data", Path: volume})
	}
	if err != nil {
		t.Fatal(err)
	}
	worth, err := a.kept.Assess(one, func(path string) (files.Size, error) {
		return files.TreeSize(t.Context(), files.Tree{Path: path})
	})
	if err != nil || !worth {
		t.Fatalf("it is not kept: %v", err)
	}
	a.kept.Release(one)
	return one
}
