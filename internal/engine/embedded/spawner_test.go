package embedded

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMoveSpawner moves a program that constantly starts others by posix_spawn, back and forth. At most
// moments, one of its threads waits in vfork, where nothing can dump it.
func TestMoveSpawner(t *testing.T) {
	t.Parallel()
	a, b := newTestNode(t), newTestNode(t)
	for _, n := range []*testNode{a, b} {
		dir, err := n.config.Images.LayerPath(testLayer)
		if err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "bin/spawner")
		const source = "../../kernel/cgroup/testdata/spawner/spawner.c"
		build := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-static", "-pthread", "-o", program, source)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the workload: %v\n%s", err, out)
		}
	}
	moves := 200
	if testing.Short() {
		moves = 6
	}
	d := definition(t, "/bin/spawner", "4")
	a.start(d)
	for i := range moves {
		lines := strings.Count(a.output(d.ID), "\n")
		waitFor(t, "the workload", func() bool { return strings.Count(a.output(d.ID), "\n") > lines })
		if i%2 == 0 {
			move(t, a, b, d.ID)
		} else {
			preCopy(t, a, b, d.ID)
		}
		a, b = b, a
	}
	if ctr, err := a.Inspect(t.Context(), d.ID); err != nil || ctr.State != "running" {
		t.Errorf("at the end: %+v, %v", ctr, err)
	}
}
