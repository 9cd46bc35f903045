package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

// spillLink is so slow that pages are on disk long before all have been sent.
var spillLink = lab.Link{BandwidthBitsPerSecond: 10_000_000, RTT: 2 * time.Millisecond}

// TestSpill loses the frozen processes in a post-copy push whose pages are also on the source's disk.
func TestSpill(t *testing.T) {
	t.Parallel()
	t.Run("the source reboots", func(t *testing.T) { newSpillWorld(t).sourceReboots(t) })
	t.Run("the key is lost", func(t *testing.T) { newSpillWorld(t).spillKeyLost(t) })
	if testing.Short() { // each of the others takes half a minute
		return
	}
	t.Run("the source reboots after its agent", func(t *testing.T) { newSpillWorld(t).agentThenReboot(t) })
	t.Run("the other agent, then the source", func(t *testing.T) { newSpillWorld(t).agentThereThenReboot(t) })
	t.Run("the processes are killed", func(t *testing.T) { newSpillWorld(t).frozenKilled(t) })
	t.Run("the processes have run", func(t *testing.T) { newSpillWorld(t).frozenThawed(t) })
}

// newSpillWorld makes a world whose container has been on both nodes.
func newSpillWorld(t *testing.T) *world {
	t.Helper()
	w := newWorldOf(t, migration.PostCopy, soon)
	for range nodes {
		w.meet(t)
		w.settle(t, w.begin(t, w.at, other(w.at)))
	}
	w.meet(t)
	if err := w.lab.SetLink("a", "b", spillLink); err != nil {
		t.Fatal(err)
	}
	w.spill = true
	return w
}

// spillFile returns the source's file of pages.
func (w *world) spillFile(t *testing.T, id string) string {
	t.Helper()
	return filepath.Join(w.journal(t, "a", id), "spill")
}

// spilled migrates from a to b, and waits until all pages are on the disk of a, and b knows that.
func (w *world) spilled(t *testing.T) (id string) {
	t.Helper()
	id = w.begin(t, "a", "b")
	w.awaitSpill(t, id)
	if _, err := os.Stat(w.spillFile(t, id)); err != nil {
		t.Error(err)
	}
	return id
}

// awaitSpill waits until both nodes report that a reboot of the source loses nothing, while pages are
// missing.
func (w *world) awaitSpill(t *testing.T, id string) {
	t.Helper()
	eventually(t, "the pages to be on the disk", func() error {
		here, _ := w.report(t, "a", id)
		there, _ := w.report(t, "b", id)
		for _, d := range []*migration.Push{here.Push, there.Push} {
			if d == nil || d.Spill != migration.SpillComplete {
				return fmt.Errorf("a says %+v, b %+v", here.Push, there.Push)
			}
		}
		return nil
	})
	if r, _ := w.report(t, "b", id); r.Push.LeftPages == 0 {
		t.Fatal("all pages have come already")
	}
}

// arrivesWhole waits for the end, and checks that the container has all its data, and that a has nothing of
// it.
func (w *world) arrivesWhole(t *testing.T, id string) {
	t.Helper()
	w.settle(t, id)
	r, _ := w.report(t, "a", id)
	moved := w.at == "b" && r.Result == migration.Moved
	if !moved || r.Push == nil || r.Push.LostPages+r.Push.LeftPages > 0 {
		t.Errorf("it is on %s, and the source says %+v", w.at, r)
	}
	w.memoryIsRight(t)
	if left, err := filepath.Glob(w.spillFile(t, id) + "*"); err != nil || len(left) > 0 {
		t.Errorf("left are %v %v", left, err)
	}
	w.nothingOf(t, "a")
}

// sourceReboots loses all processes at the source.
func (w *world) sourceReboots(t *testing.T) {
	id := w.spilled(t)
	w.reboot(t, "a")
	w.reviveAgents(t)
	eventually(t, "pages to come from the disk", func() error {
		if r, _ := w.report(t, "a", id); r.Push == nil || r.Push.Spill != migration.SpillServing {
			return fmt.Errorf("a says %+v", r.Push)
		}
		return nil
	})
	w.arrivesWhole(t, id)
	w.clientGoesOn(t)
}

// agentThenReboot kills the source's agent before it has written anything. The next agent writes the pages
// that are then missing.
func (w *world) agentThenReboot(t *testing.T) {
	atPush := agent.Fault{Side: "source", Step: "drain", When: "before"}
	w.set(t, "a", atPush, agent.FaultPause)
	id := w.begin(t, "a", "b")
	w.reach(t, "a", atPush)
	w.killAgent(t, "a")
	w.reviveAgents(t)
	w.awaitSpill(t, id)
	w.reboot(t, "a")
	w.reviveAgents(t)
	w.arrivesWhole(t, id)
}

// agentThereThenReboot makes the target forget the key. The source sends it again.
func (w *world) agentThereThenReboot(t *testing.T) {
	id := w.spilled(t)
	w.killAgent(t, "b")
	w.reviveAgents(t)
	w.awaitSpill(t, id)
	w.reboot(t, "a")
	w.reviveAgents(t)
	w.arrivesWhole(t, id)
}

// spillKeyLost reboots the source while the target's agent is away, too: the key is lost. This is reported,
// and an operator decides.
func (w *world) spillKeyLost(t *testing.T) {
	id := w.spilled(t)
	w.killAgent(t, "b")
	w.reboot(t, "a")
	w.reviveAgents(t)
	eventually(t, "the source to tell of it", func() error {
		out, err := w.godwit(t.Context(), "a", "migration", "show", id)
		told := strings.Contains(out, "its key was in the memory of both agents")
		if err == nil && (!told || !strings.Contains(out, "--missing-pages")) {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	})
	w.expectState(t, "b", engine.Running)
	w.stop()
	eventually(t, "the operator to be heard", func() error {
		_, err := w.godwit(t.Context(), "b", "migration", "resolve", id, "--runs-at", "target",
			"--missing-pages", "kill", "--force")
		return err
	})
	w.expectState(t, "b", engine.Exited)
	w.must(t, "a", "migration", "resolve", id, "--runs-at", "target", "--force")
	w.comesBack(t, id)
	if _, err := os.Lstat(w.spillFile(t, id)); !os.IsNotExist(err) {
		t.Errorf("pages that nobody can read are still there: %v", err)
	}
}

// frozenKilled kills the frozen processes, and the keeper that would hold them, while the agent continues.
func (w *world) frozenKilled(t *testing.T) {
	id := w.spilled(t)
	w.killKeepers(t)
	w.inNode(t, "a", "kill", "-KILL", strconv.Itoa(w.find(t, "a", container).PID))
	w.arrivesFromDisk(t, id)
}

// frozenThawed thaws frozen processes that are no longer held. Their memory must no longer be used.
func (w *world) frozenThawed(t *testing.T) {
	id := w.spilled(t)
	pid := strconv.Itoa(w.find(t, "a", container).PID)
	w.killAgent(t, "a")
	w.killKeepers(t)
	w.inNode(t, "a", "sh", "-c", `groups=/proc/`+pid+`/cgroup
		d=$(findmnt -nt cgroup2 -o TARGET | head -n 1)$(sed -n 's/^0:://p' $groups)
		v1=$(findmnt -nt cgroup -O freezer -o TARGET | head -n 1)$(sed -n 's/^[0-9]*:freezer://p' $groups)
		if [ -e $d/cgroup.freeze ]; then echo 0 >$d/cgroup.freeze; else echo THAWED >$v1/freezer.state; fi`)
	w.reviveAgents(t)
	w.arrivesFromDisk(t, id)
}

func (w *world) killKeepers(t *testing.T) {
	t.Helper()
	keepers := w.processesOf(t, "a", "memory-keeper")
	if len(keepers) == 0 {
		t.Fatal("nothing keeps the memory")
	}
	for _, pid := range keepers {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// arrivesFromDisk checks that a post-copy push had to read pages from the disk, and that nothing is
// missing.
func (w *world) arrivesFromDisk(t *testing.T, id string) {
	t.Helper()
	w.arrivesWhole(t, id)
	if r, _ := w.report(t, "a", id); r.Push.Spill != migration.SpillServing {
		t.Errorf("the pages came from elsewhere: %+v", r.Push)
	}
	w.clientGoesOn(t)
}

// spillFaults lists the faults when pages are also written to disk.
func spillFaults() []fault {
	var all []fault
	for _, k := range []kind{killSource, killBoth, killTarget, linkLoses, stepFails} {
		all = append(all, fault{"source", "drain", "before", k})
	}
	for _, k := range []kind{killSource, killBoth, stepFails} {
		all = append(all, fault{"source", "drain", "after", k})
	}
	return append(all, fault{"source", "destroy", "before", killSource},
		fault{"target", "restore", "before", stepFails}, fault{"source", "send", "before", killSource})
}

// TestSpillFaults: the disk keeps nothing, whatever happens, and no data is lost.
func TestSpillFaults(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, migration.PostCopy, patient)
	w.learnOrder(t)
	w.slowDown(t)
	w.spill = true
	for i, f := range spillFaults() {
		if testing.Short() && i%4 > 0 {
			continue
		}
		ok := t.Run(f.String(), func(t *testing.T) {
			w.suffer(t, f)
			for _, node := range nodes {
				journals := filepath.Dir(w.journal(t, node, "x"))
				left, err := filepath.Glob(filepath.Join(journals, "*", "spill*"))
				if err != nil || len(left) > 0 {
					t.Errorf("left on %s are %v %v", node, left, err)
				}
			}
		})
		if !ok && w.broken {
			t.Fatal("the world cannot be used any more")
		}
	}
	w.clientIsHappy(t)
}
