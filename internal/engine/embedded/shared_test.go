package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
)

// leaveShared makes a departure leave out the shared memory that a source carries.
func leaveShared(t testing.TB, departure engine.Departure, pages *memory.Source) {
	t.Helper()
	inodes, err := pages.Shared()
	if err != nil {
		t.Fatal(err)
	}
	left, err := departure.LeaveShared(inodes)
	if err != nil {
		t.Fatal(err)
	}
	if len(inodes) > 0 && !left {
		t.Fatal("shared memory cannot be left out of a dump")
	}
}

// newSharerNodes makes nodes with a layer that has a program whose processes share memory.
func newSharerNodes(t testing.TB) (a, b *testNode) {
	t.Helper()
	a, b = newTestNode(t), newTestNode(t)
	for _, n := range []*testNode{a, b} {
		dir, err := n.config.Images.LayerPath(testLayer)
		if err != nil {
			t.Fatal(err)
		}
		build := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-static", "-o",
			filepath.Join(dir, "bin/sharer"), "../../memory/testdata/sharer/sharer.c")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the workload: %v\n%s", err, out)
		}
	}
	return a, b
}

// TestPreCopyShared moves processes that share memory back and forth, and checks that they still share it,
// with the same contents.
func TestPreCopyShared(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string][]string{
		"one": {"0", "200", ""}, "three": {"2", "200", ""}, "visitors": {"1", "200", "fork"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSharerNodes(t)
			d := definition(t, append([]string{"sharer", "24"}, arguments...)...)
			a.start(d)
			waitFor(t, "the workload", func() bool { return strings.Contains(a.output(d.ID), "round 1 ") })
			for range 3 {
				preCopy(t, a, b, d.ID)
				if report := filled(t, b, d.ID); report.State != memory.Filled {
					t.Fatalf("report: %+v", report)
				}
				stillGood(t, b, d.ID)
				a, b = b, a
			}
		})
	}
}

// compareShared checks that a store has the frozen processes' shared memory, and that all of it is carried.
func compareShared(t testing.TB, n *testNode, id string, store *memory.Store, maps []memory.TaskMap) {
	t.Helper()
	have := map[memory.Task]map[uint64]bool{}
	for _, m := range maps {
		pages := map[uint64]bool{}
		for _, a := range m.Areas {
			for page := range a.Pages {
				pages[a.Start+page*4096] = true
			}
		}
		have[m.Task] = pages
	}
	carried := map[uint64]memory.Task{}
	for _, m := range maps {
		if o, ok := store.Object(m.Task); ok {
			carried[o.Inode] = m.Task
		}
	}
	wrong := 0
	for inode, file := range sharedFiles(t, n, id) {
		task, ok := carried[inode]
		if !ok {
			t.Errorf("shared memory %s of inode %d was not carried", file.Name(), inode)
			continue
		}
		is, got := make([]byte, 4096), make([]byte, 4096)
		for at := int64(0); ; at += 4096 {
			k, err := file.ReadAt(is, at)
			if k == 0 && errors.Is(err, io.EOF) {
				break
			}
			clear(is[k:])
			there, err := store.ReadPage(task, uint64(at), got)
			if err != nil {
				t.Fatal(err)
			}
			if !there || !have[task][uint64(at)] {
				clear(got)
			}
			if !bytes.Equal(is, got) {
				if wrong++; wrong < 10 {
					t.Errorf("shared memory %s, page %#x: sent %v %x…, is %x…", file.Name(), at,
						there, got[:16], is[:16])
				}
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%d pages are not what they are at the source", wrong)
	}
}

// sharedFiles opens all shared memory of a container that /proc shows.
func sharedFiles(t testing.TB, n *testNode, id string) map[uint64]*os.File {
	t.Helper()
	group, err := cgroup.Open(n.paths.of(id).cgroup())
	if err != nil {
		t.Fatal(err)
	}
	pids, err := group.Procs()
	if err != nil {
		t.Fatal(err)
	}
	files := map[uint64]*os.File{}
	for _, pid := range pids {
		for _, pattern := range []string{"/proc/%d/map_files/*", "/proc/%d/fd/*"} {
			links, err := filepath.Glob(fmt.Sprintf(pattern, pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, link := range links {
				target, err := os.Readlink(link)
				if err != nil || target != "/dev/zero (deleted)" && !strings.HasPrefix(target, "/memfd:") {
					continue
				}
				file, err := os.Open(link)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = file.Close() })
				var info unix.Stat_t
				if err := unix.Fstat(int(file.Fd()), &info); err != nil {
					t.Fatal(err)
				}
				files[info.Ino] = file
			}
		}
	}
	return files
}

// TestSharedAborted aborts a move after the dump, twice: because shared memory has not come to the target,
// and at the source. It checks that the processes still share their memory where they were, and can move
// after that.
func TestSharedAborted(t *testing.T) {
	t.Parallel()
	a, b := newSharerNodes(t)
	d := definition(t, "sharer", "8", "2", "200")
	a.start(d)
	waitFor(t, "the workload", func() bool { return strings.Contains(a.output(d.ID), "round 1 ") })
	ctr, err := a.Inspect(t.Context(), d.ID)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	arrival, err := b.PrepareRestore(t.Context(), ctr.Definition, newNetns(t))
	must(err)
	defer arrival.Close()
	store, err := memory.NewStore(1 << 30)
	must(err)
	defer store.Close()
	must(arrival.FillFrom(t.Context(), store))
	group, err := cgroup.Open(a.paths.of(d.ID).cgroup())
	must(err)
	pages := memory.NewSource(memory.SourceConfig{Processes: group.Procs})
	defer pages.Close()
	must(receiveRound(t.Context(), pages.Round, store))
	departure, err := a.PrepareDump(t.Context(), d.ID, engine.DumpOptions{LeaveMemory: true, Whole: true})
	must(err)
	_, err = departure.Freeze(t.Context())
	must(err)
	leaveShared(t, departure, pages)
	images := mountMemoryDir(t)
	must(departure.Dump(t.Context(), images))
	must(receiveRound(t.Context(), pages.Final, store))
	left, err := departure.LeftOut(images)
	must(err)
	must(receiveRound(t.Context(), func(ctx context.Context, sink memory.Sink) (memory.RoundStats, error) {
		return pages.Complete(ctx, sink, left)
	}, store))
	copyFiles(t, images, arrival.ImagesDir())
	copyTrees(t, a, arrival, d.ID)
	for task := memory.FirstObject; task < memory.FirstObject+10; task++ {
		must(store.Forget(task))
	}
	_, err = arrival.Restore(t.Context(), engine.Permission{Ask: func() error { return nil }})
	if !errors.Is(err, memory.ErrPagesMissing) || !strings.Contains(err.Error(), "shared memory") {
		t.Errorf("Restore without its shared memory: %v", err)
	}
	must(arrival.Close())
	must(b.Discard(t.Context(), d.ID))
	must(departure.Close())
	must(a.Resume(t.Context(), d.ID))
	must(pages.Close())
	stillGood(t, a, d.ID)
	preCopy(t, a, b, d.ID)
	stillGood(t, b, d.ID)
}
