package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

// TestVolumesSurviveFaults kills agents and fails steps of migrations of a container with a volume of each
// kind, one of them shared by both nodes. In any case, each volume has its content at the container's node,
// moved content is nowhere else, and shared content is never removed.
func TestVolumesSurviveFaults(t *testing.T) {
	t.Parallel()
	w := newNodesOf(t, lab.Config{}, soon)
	w.mode = migration.PreCopy
	w.loadRedis(t, "a")
	shared, err := os.MkdirTemp("/var/tmp", "godwit-faults-") // both nodes see it: they are on one machine
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shared) })
	if err := os.WriteFile(filepath.Join(shared, "there"), []byte("before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.exec(t, "a", "mkdir", "-p", "/tmp/above/own")
	w.id = strings.TrimSpace(w.must(t, "a", "run", "-d", "--name", container, "-v", "moved:/moved", "-v",
		"/tmp/above/own:/own",
		"-v", shared+":/shared", "--tmpfs", "/fast:size=8m", "--entrypoint", "/bin/sh", "redis", "-c",
		"for d in moved own shared fast; do echo $d >/$d/file; done; while :; do sleep 0.1; done"))
	for _, one := range []struct {
		fault agent.Fault
		kind  agent.FaultKind
		moves bool
	}{
		{agent.Fault{Side: "target", Step: "arrive", When: "after"}, agent.FaultFail, false},
		{agent.Fault{Side: "source", Step: "rounds", When: "after"}, agent.FaultKill, false},
		{agent.Fault{Side: "target", Step: "restore", When: "before"}, agent.FaultKill, false},
		{agent.Fault{Side: "source", Step: "destroy", When: "before"}, agent.FaultKill, true},
		{agent.Fault{Side: "source", Step: "destroy", When: "after"}, agent.FaultKill, true},
	} {
		t.Run(fmt.Sprintf("%s %s %s", one.fault.Step, one.fault.When, one.kind), func(t *testing.T) {
			w.meet(t)
			from, to := w.at, other(w.at)
			node := map[string]string{"source": from, "target": to}[one.fault.Side]
			w.set(t, node, one.fault, one.kind)
			id := w.begin(t, from, to)
			w.reach(t, node, one.fault)
			eventually(t, "the agent's end, if it was killed", func() error {
				pid, err := w.lab.AgentPID(node)
				if err == nil && one.kind == agent.FaultKill && pid != 0 {
					err = fmt.Errorf("agent %d still runs", pid)
				}
				return err
			})
			w.reviveAgents(t)
			w.settle(t, id)
			if moved := w.at == to; moved != one.moves {
				t.Errorf("it moved: %t", moved)
			}
			w.volumesAreRight(t, shared)
		})
	}
	t.Run("what is shared is replaced", func(t *testing.T) { w.replaceShared(t, shared) })
	w.must(t, w.at, "rm", "--force", container)
}

// replaceShared mounts something else in place of a shared volume at the target, after the proof that it is
// shared.
func (w *world) replaceShared(t *testing.T, shared string) {
	t.Helper()
	for _, mode := range []migration.Mode{migration.PreCopy, migration.Restart} {
		w.meet(t)
		w.mode = mode
		from, to := w.at, other(w.at)
		before := agent.Fault{Side: "source", Step: "prepare", When: "before"}
		w.set(t, from, before, agent.FaultPause)
		id := w.begin(t, from, to)
		w.reach(t, from, before)
		w.exec(t, to, "mount", "-t", "tmpfs", "none", shared)
		w.goOn(t, from, before)
		w.settle(t, id)
		if r, _ := w.report(t, from, id); w.at != from || r.Error == nil ||
			!strings.Contains(*r.Error, "no longer does") {
			t.Errorf("%s: it is on %s: %s", mode, w.at, deref(r.Error))
		}
		w.exec(t, to, "umount", shared)
		w.volumesAreRight(t, shared)
	}
}

// exec runs a program in a node.
func (w *world) exec(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := w.lab.Exec(t.Context(), node, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// volumesAreRight checks all volumes, in the container and on both nodes.
func (w *world) volumesAreRight(t *testing.T, shared string) {
	t.Helper()
	const want = "moved\nown\nshared\nfast\nbefore\n"
	if got := w.must(t, w.at, "exec", container, "cat", "/moved/file", "/own/file", "/shared/file",
		"/fast/file", "/shared/there"); got != want {
		t.Errorf("in the container: %q", got)
	}
	root, err := w.lab.Root(other(w.at))
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"var/lib/godwit/volumes/moved", "tmp/above/own"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); err == nil {
			t.Errorf("/%s is on %s, too", gone, other(w.at))
		}
	}
	if left, err := filepath.Glob(shared + "/.godwit*"); err != nil || len(left) > 0 {
		t.Errorf("tokens are left: %v, %v", left, err)
	}
}
