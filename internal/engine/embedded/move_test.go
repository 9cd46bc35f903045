package embedded

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"os"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/enginetest"
	"github.com/godwit/godwit/internal/engine/mounts"
)

// mountMemoryDir returns a directory in memory for a dump.
func mountMemoryDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := mounts.Memory(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// move moves a container from one node to another and logs the times of its phases.
func move(t *testing.T, source, target *testNode, id string) {
	t.Helper()
	ctx := t.Context()
	ctr, err := source.Inspect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	netns := newNetns(t)
	arrival, err := target.PrepareRestore(ctx, ctr.Definition, netns)
	if err != nil {
		t.Fatal(err)
	}
	defer arrival.Close()
	departure, err := source.PrepareDump(ctx, id, engine.DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer departure.Close()
	begin := time.Now()
	if _, err := departure.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	frozenAt := time.Now()
	images := mountMemoryDir(t)
	dumping := time.Now()
	if err := departure.Dump(ctx, images); err != nil {
		t.Fatal(err)
	}
	dumped := time.Now()
	copyFiles(t, images, arrival.ImagesDir())
	copyTrees(t, source, arrival, id)
	restoring := time.Now()
	resumed, err := arrival.Restore(ctx, engine.Permission{Ask: func() error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	returned := time.Now()
	if err := source.Destroy(ctx, id, nil); err != nil {
		t.Fatal(err)
	}
	destroyed := time.Now()
	if err := arrival.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("freeze %v dump %v restore %v (return +%v) destroy %v", frozenAt.Sub(begin), dumped.Sub(dumping),
		resumed.Sub(restoring), returned.Sub(resumed), destroyed.Sub(returned))
}

func copyFiles(t testing.TB, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(from + "/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+"/"+entry.Name(), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func copyTrees(t testing.TB, source *testNode, arrival engine.Arrival, id string) {
	t.Helper()
	trees, err := source.Trees(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	enginetest.CopyTrees(t, trees, arrival.TreePath)
}

// waitFor polls a condition.
func waitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestMove(t *testing.T) {
	t.Parallel()
	a, b := newTestNode(t), newTestNode(t)
	d := a.start(definition(t, "sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done"))
	waitFor(t, "output", func() bool { return strings.Contains(a.output(d.ID), "20\n") })
	move(t, a, b, d.ID)
	before := len(b.output(d.ID))
	waitFor(t, "more output", func() bool { return len(b.output(d.ID)) > before+100 })
	move(t, b, a, d.ID)
	before = len(a.output(d.ID))
	waitFor(t, "more output", func() bool { return len(a.output(d.ID)) > before+100 })
	out := a.output(d.ID)
	for i, line := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

// TestMoveReserve moves a program that reserves 1 TiB of address space. All of it is in the images.
func TestMoveReserve(t *testing.T) {
	t.Parallel()
	a, b := newChaosNodes(t)
	d := startChaos(t, a, "-mb", "8", "-reserve", "-pause", "1ms")
	move(t, a, b, d.ID)
	stillGood(t, b, d.ID)
	move(t, b, a, d.ID)
	stillGood(t, a, d.ID)
}

// TestRestoreBeforeLayers checks that an arrival waits for its image as it waits for its state, and is not
// resumed without it.
func TestRestoreBeforeLayers(t *testing.T) {
	n := newTestNode(t)
	const absent = "sha256:00000000000000000000000000000000000000000000000000000000000000bb"
	d := definition(t, "/bin/sh")
	d.Layers = append(d.Layers, absent)
	arrival, err := n.PrepareRestore(t.Context(), d, newNetns(t))
	if err != nil {
		t.Fatal(err)
	}
	defer arrival.Close()
	for _, name := range privateMounts() { // as if the source's files had come
		if err := os.WriteFile(n.paths.of(d.ID).private()+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	never := func() error { t.Error("it was about to be resumed"); return nil }
	_, err = arrival.Restore(t.Context(), engine.Permission{Ask: never})
	if err == nil || !strings.Contains(err.Error(), absent) {
		t.Errorf("restored without a layer: %v", err)
	}
	if err := n.Discard(t.Context(), d.ID); err != nil {
		t.Error(err)
	}
}
