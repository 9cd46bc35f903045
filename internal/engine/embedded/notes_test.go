package embedded

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// leaveAs returns a note as v0.1.0 writes it.
func leaveAs(migration, target string) departureRecord {
	return departureRecord{Started: time.Now(), Leave: engine.Leave{Migration: migration, Target: target}}
}

// TestOldDepartureDecides checks that a container leaves by the later migration after v0.1.0 has undone the
// migration of the durable note and begun another. The later migration does not count as undone, and a boot
// does not forget it.
func TestOldDepartureDecides(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sh", "-c", "while :; do sleep 0.05; done"))
	place := n.paths.of(d.ID)
	must(t, durable.Save(place.departure(), leaveAs("one", "b")))
	must(t, durable.Save(place.oldDeparture(), leaveAs("two", "c")))
	group, err := cgroup.Open(place.cgroup())
	if err == nil {
		_, err = group.Freeze(t.Context())
	}
	must(t, err)
	leaves := func(when string, state engine.State) {
		t.Helper()
		if ctr := n.state(d.ID); ctr.Leaving == nil || ctr.Leaving.Target != "c" || ctr.State != state {
			t.Fatalf("%s it is %s, leaving as %+v", when, ctr.State, ctr.Leaving)
		}
	}
	leaves("before the engine is opened again", engine.Frozen)
	n = n.reopen()
	must(t, n.ResumeOf(t.Context(), d.ID, "one"))
	leaves("when the other migration was undone", engine.Frozen)
	must(t, os.Remove(place.oldDeparture()))
	leaves("with the run directory emptied", engine.Frozen)
	n = n.boot()
	leaves("after a boot", engine.Exited)
	must(t, n.ResumeOf(t.Context(), d.ID, "one"))
	leaves("when the other migration was undone", engine.Exited)
	must(t, n.ResumeOf(t.Context(), d.ID, "two"))
	if ctr := n.state(d.ID); ctr.Leaving != nil {
		t.Errorf("leaving as %+v, after its migration was undone", ctr.Leaving)
	}
	must(t, n.ResumeOf(t.Context(), newID(t), "two")) // the container was removed meanwhile
}

// TestResumeOf checks that ResumeOf resumes nothing that a later migration has frozen.
func TestResumeOf(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sh", "-c", "while :; do sleep 0.05; done"))
	departure, err := n.PrepareDump(t.Context(), d.ID,
		engine.DumpOptions{Leave: engine.Leave{Migration: "two", Target: "b"}})
	must(t, err)
	defer departure.Close()
	_, err = departure.Freeze(t.Context())
	must(t, err)
	must(t, n.ResumeOf(t.Context(), d.ID, "one"))
	if ctr := n.state(d.ID); ctr.State != engine.Frozen || ctr.Leaving == nil {
		t.Errorf("it is %s, leaving as %+v", ctr.State, ctr.Leaving)
	}
	must(t, n.ResumeOf(t.Context(), d.ID, "two"))
	if ctr := n.state(d.ID); ctr.State != engine.Running || ctr.Leaving != nil {
		t.Errorf("it is %s, leaving as %+v", ctr.State, ctr.Leaving)
	}
}

// smallNode is a node with a small disk.
func smallNode(t *testing.T) *testNode {
	t.Helper()
	n := newTestNode(t)
	state := n.config.StateDir
	must(t, unix.Mount("tmpfs", state, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(state, unix.MNT_DETACH)) })
	t.Cleanup(n.clean)
	return n.reopen()
}

// fill fills a node's disk, and also the room for notes if spent is set. free undoes that.
func (n *testNode) fill(spent bool) (free func()) {
	n.t.Helper()
	if spent {
		must(n.t, os.Remove(n.room.path))
	}
	path := filepath.Join(n.config.StateDir, "filler")
	file, err := os.Create(path)
	must(n.t, err)
	for size := 1 << 16; size > 0; {
		if _, err := file.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else {
			must(n.t, err)
		}
	}
	must(n.t, file.Close())
	return func() { must(n.t, os.Remove(path)) }
}

// TestFullDisk checks that containers can leave a node with a full disk, and can be stopped there. Notes
// about that go into the reserved room.
func TestFullDisk(t *testing.T) {
	n := smallNode(t)
	wanted := definition(t, "sleep", "600")
	wanted.Restart = "always"
	d := n.start(wanted)
	wanted = definition(t, "sleep", "600")
	wanted.StopTimeout = 0.1
	halted := n.start(wanted)
	free := n.fill(false)
	defer free()
	_, err := n.Halt(t.Context(), halted.ID, engine.Leave{Migration: "two", Target: "b"})
	must(t, err)
	must(t, n.Destroy(t.Context(), halted.ID, nil))
	for range 20 {
		departure, err := n.PrepareDump(t.Context(), d.ID,
			engine.DumpOptions{Leave: engine.Leave{Migration: "one", Target: "b"}})
		must(t, err)
		if !durable.Exists(n.paths.of(d.ID).departure()) {
			t.Fatal("that it leaves is not noted")
		}
		must(t, departure.Close())
	}
	must(t, n.Stop(t.Context(), d.ID, 0))
	n.stands(d.ID, "it was stopped")
	n = n.reopen()
	n.stands(d.ID, "it was stopped")
}

// TestFullDiskWithoutRoom checks that without reserved room a container does not leave, and continues. It
// can still be stopped, and that is recorded when there is room again.
func TestFullDiskWithoutRoom(t *testing.T) {
	n := smallNode(t)
	always, none := definition(t, "sleep", "600"), n.start(definition(t, "sleep", "600"))
	always.Restart = "always"
	n.start(always)
	free := n.fill(true)
	_, err := n.PrepareDump(t.Context(), always.ID,
		engine.DumpOptions{Leave: engine.Leave{Migration: "one", Target: "b"}})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "note that it leaves") {
		t.Errorf("it leaves: %v", err)
	}
	if ctr := n.state(always.ID); ctr.State != engine.Running || ctr.Leaving != nil {
		t.Errorf("it is %s, leaving as %+v", ctr.State, ctr.Leaving)
	}
	must(t, n.Stop(t.Context(), none.ID, 0))
	if err := n.Stop(t.Context(), always.ID, 0); !errors.Is(err, unix.ENOSPC) ||
		!strings.Contains(err.Error(), "has been stopped") {
		t.Errorf("stopped: %v", err)
	}
	n.stands(always.ID, "it was stopped")
	if err := n.KeepNotes(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("noted: %v", err)
	}
	free()
	must(t, n.KeepNotes())
	n = n.reopen()
	n.stands(always.ID, "it was stopped")
}

// TestFullDiskUpgrade checks that the engine opens on a full disk with v0.1.0's note that a container
// leaves, and makes the note durable when there is room.
func TestFullDiskUpgrade(t *testing.T) {
	n := smallNode(t)
	d := n.start(definition(t, "sleep", "600"))
	must(t, durable.Save(n.paths.of(d.ID).oldDeparture(), leaveAs("one", "b")))
	free := n.fill(true)
	n = n.reopen()
	leaves := func(when string) {
		t.Helper()
		if ctr := n.state(d.ID); ctr.Leaving == nil || ctr.Leaving.Target != "b" {
			t.Fatalf("%s: leaving as %+v", when, ctr.Leaving)
		}
	}
	leaves("on a full disk")
	if err := n.KeepNotes(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("noted: %v", err)
	}
	free()
	must(t, n.KeepNotes())
	n = n.boot()
	leaves("after a boot")
}

// TestRunDirectoryEmptied checks that a container whose run directory somebody has emptied runs on. It does
// not count as ended: nothing starts it a second time, or removes it. It can be stopped.
func TestRunDirectoryEmptied(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sleep", "600"))
	place, was := n.paths.of(d.ID), n.state(d.ID)
	first, err := checkpoint.Identify(was.PID)
	must(t, err)
	entries, err := os.ReadDir(place.runDir())
	must(t, err)
	for _, entry := range entries {
		if !entry.IsDir() {
			must(t, os.Remove(filepath.Join(place.runDir(), entry.Name())))
		}
	}
	runs := func(when string) {
		t.Helper()
		if ctr := n.state(d.ID); ctr.State != engine.Running || ctr.PID != was.PID || !first.Alive() {
			t.Fatalf("%s: it is %s, process %d, alive %t", when, ctr.State, ctr.PID, first.Alive())
		}
	}
	runs("with its run directory emptied")
	if err := n.Start(t.Context(), d.ID); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("started again: %v", err)
	}
	if err := n.Remove(t.Context(), d.ID, false); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("removed: %v", err)
	}
	if problems, err := n.Examine(t.Context(), d.ID); err != nil || len(problems) == 0 {
		t.Errorf("it could be moved: %v, %v", problems, err)
	}
	n = n.reopen()
	runs("after all that")
	must(t, n.Stop(t.Context(), d.ID, 0))
	eventually(t, "its end to be recorded",
		func() bool { return n.state(d.ID).State == engine.Exited && !first.Alive() })
	must(t, n.Start(context.WithoutCancel(t.Context()), d.ID))
}
