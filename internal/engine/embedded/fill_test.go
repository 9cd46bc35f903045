package embedded

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
)

// chaosLayer adds a program that checks its own memory to the layer of the other tests.
func chaosLayer(t testing.TB, n *testNode) {
	t.Helper()
	dir, err := n.config.Images.LayerPath(testLayer)
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "bin/chaos"),
		"../../memory/pager/testdata/chaos")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the workload: %v\n%s", err, out)
	}
}

// lazyMappings returns the mappings of a process that a restore leaves out.
func lazyMappings(t testing.TB, pid int) []memory.Area {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var found []memory.Area
	var last *memory.Area
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok {
			if last != nil && !strings.Contains(flags, " lo") && !strings.Contains(flags, " ht") {
				found = append(found, *last)
			}
			last = nil
			continue
		}
		if strings.HasSuffix(fields[0], ":") || len(fields) < 5 {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		special := len(fields) > 5 &&
			(strings.HasPrefix(fields[5], "[v") || strings.HasPrefix(fields[5], "/"))
		reserve := end-start >= 1<<40 // nothing is ever in it
		if err1 != nil || err2 != nil || fields[1][3] != 'p' || fields[4] != "0" || special || reserve {
			continue
		}
		last = &memory.Area{Start: start, Pages: (end - start) / 4096}
	}
	return found
}

// present returns the areas that have pages.
func present(t testing.TB, pid int, within []memory.Area) []memory.Area {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var found []memory.Area
	for _, area := range within {
		entries := make([]byte, area.Pages*8)
		if _, err := file.ReadAt(entries, int64(area.Start/4096*8)); err != nil {
			t.Fatal(err)
		}
		for page := range area.Pages {
			if binary.NativeEndian.Uint64(entries[page*8:])>>62 == 0 {
				continue
			}
			address := area.Start + page*4096
			if n := len(found); n > 0 && address > area.Start &&
				found[n-1].Start+found[n-1].Pages*4096 == address {
				found[n-1].Pages++
			} else {
				found = append(found, memory.Area{Start: address, Pages: 1})
			}
		}
	}
	return found
}

// readMemory copies the memory of a frozen container to a store.
func readMemory(t testing.TB, n *testNode, id string, store *memory.Store) []memory.TaskMap {
	t.Helper()
	group, err := cgroup.Open(n.paths.of(id).cgroup())
	if err != nil {
		t.Fatal(err)
	}
	pids, err := group.Procs()
	if err != nil {
		t.Fatal(err)
	}
	var maps []memory.TaskMap
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		if process.State == 'Z' {
			continue
		}
		m := memory.TaskMap{Task: memory.Task(process.NamespaceID),
			Areas: present(t, pid, lazyMappings(t, pid))}
		for _, area := range m.Areas {
			copyArea(t, pid, m.Task, area, store)
		}
		maps = append(maps, m)
	}
	if err := store.Keep(maps); err != nil {
		t.Fatal(err)
	}
	return maps
}

// copyArea reads through /proc, which ignores the protection of memory.
func copyArea(t testing.TB, pid int, task memory.Task, area memory.Area, store *memory.Store) {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	buffer := make([]byte, memory.MaxRunPages*4096)
	for done := uint64(0); done < area.Pages; {
		pages := min(area.Pages-done, memory.MaxRunPages)
		data, address := buffer[:pages*4096], area.Start+done*4096
		if got, err := file.ReadAt(data, int64(address)); err != nil {
			t.Fatalf("read %d pages at %#x of %d: %d, %v", pages, address, pid, got, err)
		}
		if err := store.Put(memory.Run{Task: task, Address: address, Pages: uint32(pages)},
			data); err != nil {
			t.Fatal(err)
		}
		done += pages
	}
}

// moveLazily moves a container so that its memory is filled while it runs.
func moveLazily(t testing.TB, source, target *testNode, id string) {
	t.Helper()
	moveThen(t, source, target, id, func() {})
}

// moveThen calls then as soon as the container runs at the target.
func moveThen(t testing.TB, source, target *testNode, id string, then func()) {
	t.Helper()
	ctx := t.Context()
	ctr, err := source.Inspect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	arrival, err := target.PrepareRestore(ctx, ctr.Definition, newNetns(t))
	if err != nil {
		t.Fatal(err)
	}
	defer arrival.Close()
	store, err := memory.NewStore(8 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := arrival.FillFrom(ctx, store); err != nil {
		t.Fatal(err)
	}
	departure, err := source.PrepareDump(ctx, id, engine.DumpOptions{LeaveMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	defer departure.Close()
	if _, err := departure.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	images := mountMemoryDir(t)
	if err := departure.Dump(ctx, images); err != nil {
		t.Fatal(err)
	}
	copyFiles(t, images, arrival.ImagesDir())
	copyTrees(t, source, arrival, id)
	readMemory(t, source, id, store)
	restoring := time.Now()
	resumed, err := arrival.Restore(ctx, engine.Permission{Ask: func() error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	then()
	if err := source.Destroy(ctx, id, nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("restore %v", resumed.Sub(restoring))
}

// filled waits until the memory of a container is complete.
func filled(t testing.TB, n *testNode, id string) memory.FillReport {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		report, err := n.Memory(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if report.State != memory.Filling {
			return report
		}
		if time.Now().After(deadline) {
			t.Fatalf("the memory is not filled: %+v", report)
		}
	}
}

// startChaos starts a container with a program that checks its own memory.
func startChaos(t testing.TB, n *testNode, arguments ...string) engine.Definition {
	t.Helper()
	d := definition(t, append([]string{"chaos"}, arguments...)...)
	n.start(d)
	waitFor(t, "the workload", func() bool { return strings.Contains(n.output(d.ID), "round 1 ") })
	return d
}

// stillGood waits for some more rounds of checks, and requires that all have succeeded.
func stillGood(t *testing.T, n *testNode, id string) {
	t.Helper()
	before := strings.Count(n.output(id), "round")
	waitFor(t, "more rounds", func() bool {
		out := n.output(id)
		return strings.Count(out, "round") > before+2 || strings.Contains(out, "BAD")
	})
	if out := n.output(id); strings.Contains(out, "BAD") {
		t.Fatalf("%.2000s", out[strings.Index(out, "BAD"):])
	}
}

func newChaosNodes(t testing.TB) (a, b *testNode) {
	t.Helper()
	a, b = newTestNode(t), newTestNode(t)
	chaosLayer(t, a)
	chaosLayer(t, b)
	return a, b
}

// TestFill moves programs back and forth. Each checks its memory while it is filled and after.
func TestFill(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string][]string{
		"threads":  {"-mb", "64", "-threads", "4"},
		"chaos":    {"-mb", "64", "-chaos"},
		"children": {"-mb", "32", "-children", "3"},
		"all":      {"-mb", "32", "-children", "1", "-zombie", "-lock", "-huge", "-chaos"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newChaosNodes(t)
			d := startChaos(t, a, append(arguments, "-pause", "1ms")...)
			for range 2 {
				moveLazily(t, a, b, d.ID)
				refused := refusesFilling(t, b, d.ID)
				report := filled(t, b, d.ID)
				if report.State != memory.Filled || report.LeftPages != 0 {
					t.Fatalf("report: %+v", report)
				}
				t.Logf("refused %v, %+v", refused, report)
				stillGood(t, b, d.ID)
				a, b = b, a
			}
		})
	}
}

// refusesFilling requires that a container with incomplete memory cannot be moved. It returns false if the
// memory is already complete.
func refusesFilling(t *testing.T, n *testNode, id string) bool {
	t.Helper()
	problems, err := n.Examine(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	departure, err := n.PrepareDump(t.Context(), id, engine.DumpOptions{})
	if err == nil {
		departure.Close()
	}
	if report, err := n.Memory(t.Context(), id); err != nil || report.State != memory.Filling {
		return false
	}
	if len(problems) != 1 || !strings.Contains(problems[0].What, "memory") {
		t.Errorf("Examine: %+v", problems)
	}
	if !errors.Is(err, engine.ErrBusy) {
		t.Errorf("PrepareDump: %v", err)
	}
	return true
}

// TestFillIsLost kills the pager while it fills. The container ends, and never sees a zero page.
func TestFillIsLost(t *testing.T) {
	t.Parallel()
	a, b := newChaosNodes(t)
	d := startChaos(t, a, "-mb", "256", "-pause", "1ms")
	moveThen(t, a, b, d.ID, func() {
		report, err := b.Memory(t.Context(), d.ID)
		if err != nil || report.State != memory.Filling {
			t.Fatalf("all was filled before it could be stopped: %+v, %v", report, err)
		}
		if err := unix.Kill(report.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	waitFor(t, "the end of the container", func() bool {
		ctr, err := b.Inspect(t.Context(), d.ID)
		// The container may be killed before its monitor has taken it over; then the monitor does not learn
		// how it ended.
		return err == nil && ctr.State == engine.Exited &&
			(ctr.ExitCode == 137 || ctr.ExitCode == exitUnknown)
	})
	if out := b.output(d.ID); strings.Contains(out, "BAD") {
		t.Errorf("%.2000s", out[strings.Index(out, "BAD"):])
	}
	if report, err := b.Memory(t.Context(), d.ID); err != nil || report.State != memory.FillLost ||
		report.Error == "" {
		t.Errorf("report: %+v, %v", report, err)
	}
	if err := b.Start(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	if report, err := b.Memory(t.Context(), d.ID); err != nil || report.State != memory.FillNone ||
		report.Error != "" {
		t.Errorf("report after a new start: %+v, %v", report, err)
	}
}

// TestFillRefuses checks that a restore is refused, for the first reason that occurs, when pages that the
// dump has left out have not come, when there are more pages than the container may have, or when an image
// is missing. Nothing has run then.
func TestFillRefuses(t *testing.T) {
	for what, refusal := range map[string]string{
		"missing": "pages are missing", "limit": "memory limit", "images": "inventory.img",
	} {
		t.Run(what, func(t *testing.T) {
			n := newTestNode(t)
			d := definition(t, "true")
			if what == "limit" {
				d.Limits.MemoryBytes = 32 << 20
			}
			arrival, err := n.PrepareRestore(t.Context(), d, newNetns(t))
			if err != nil {
				t.Fatal(err)
			}
			defer arrival.Close()
			store, err := memory.NewStore(1 << 30)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if err := arrival.FillFrom(t.Context(), store); err != nil {
				t.Fatal(err)
			}
			if err := arrival.FillFrom(t.Context(), store); err == nil {
				t.Error("FillFrom twice succeeds")
			}
			fakeState(t, arrival, what, store)
			_, err = arrival.Restore(t.Context(), engine.Permission{Ask: func() error { return nil }})
			if err == nil || !strings.Contains(err.Error(), refusal) {
				t.Errorf("Restore: %v", err)
			}
			if err := arrival.Close(); err != nil {
				t.Error(err)
			}
			if outcome, err := n.Arrived(t.Context(), d.ID); err != nil || outcome != engine.NeverRan {
				t.Errorf("Arrived: %s, %v", outcome, err)
			}
			if err := n.Discard(t.Context(), d.ID); err != nil {
				t.Fatal(err)
			}
			wantNothing(t, n, d.ID)
		})
	}
}

// fakeState makes the parts of a state that are checked before CRIU may continue.
func fakeState(t *testing.T, arrival engine.Arrival, what string, store *memory.Store) {
	t.Helper()
	private, err := arrival.TreePath(files.Private, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range privateMounts() {
		if err := os.WriteFile(filepath.Join(private, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if what == "limit" {
		content := make([]byte, memory.MaxRunPages*4096)
		for at := uint64(0); at < 33<<20; at += memory.MaxRunPages * 4096 {
			if err := store.Put(memory.Run{Task: 1, Address: at, Pages: memory.MaxRunPages},
				content); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	// A pagemap with one entry: three pages at 0x1000 that are left out (flag 2).
	image := []byte{
		0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56, 2, 0, 0, 0, 0x08, 1,
		9, 0, 0, 0, 0x08, 0x80, 0x20, 0x10, 0, 0x20, 2, 0x28, 3,
	}
	written := map[string][]byte{"pagemap-1.img": image, "files.img": image[:8]} // no open files
	if what == "images" {
		delete(written, "pagemap-1.img")
	}
	for name, data := range written {
		if err := os.WriteFile(filepath.Join(arrival.ImagesDir(), name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPreCopy moves programs whose memory was read in rounds while they ran and were tracked.
func TestPreCopy(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string][]string{
		"threads": {"-mb", "64", "-threads", "3"},
		"all":     {"-mb", "32", "-children", "2", "-zombie", "-lock", "-huge", "-chaos"},
		"reserve": {"-mb", "8", "-reserve", "-children", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newChaosNodes(t)
			d := startChaos(t, a, append(arguments, "-pause", "1ms")...)
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

// preCopy moves a container as a migration does: rounds, freeze, remaining pages during the dump, the map.
func preCopy(t *testing.T, source, target *testNode, id string) {
	t.Helper()
	ctx := t.Context()
	ctr, err := source.Inspect(ctx, id)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	arrival, err := target.PrepareRestore(ctx, ctr.Definition, newNetns(t))
	check(err)
	defer arrival.Close()
	store, err := memory.NewStore(1 << 30)
	check(err)
	defer store.Close()
	check(arrival.FillFrom(ctx, store))
	group, err := cgroup.Open(source.paths.of(id).cgroup())
	check(err)
	pages := memory.NewSource(memory.SourceConfig{Processes: group.Procs})
	defer pages.Close()
	for range 3 {
		check(receiveRound(ctx, pages.Round, store))
	}
	departure, err := source.PrepareDump(ctx, id, engine.DumpOptions{LeaveMemory: true})
	check(err)
	defer departure.Close()
	_, err = departure.Freeze(ctx)
	check(err)
	leaveShared(t, departure, pages)
	images, last := mountMemoryDir(t), make(chan error, 1)
	go func() { last <- receiveRound(ctx, pages.Final, store) }()
	check(departure.Dump(ctx, images))
	check(<-last)
	check(receiveRound(ctx, pages.Final, store))
	left, err := departure.LeftOut(images)
	check(err)
	check(receiveRound(ctx, func(ctx context.Context, sink memory.Sink) (memory.RoundStats, error) {
		return pages.Complete(ctx, sink, left)
	}, store))
	maps, err := pages.Map()
	check(err)
	if touched, err := departure.Touched(images); err != nil || len(touched) == 0 {
		t.Errorf("%d pages are touched first, %v", len(touched), err)
	}
	copyFiles(t, images, arrival.ImagesDir())
	copyTrees(t, source, arrival, id)
	check(store.Keep(maps))
	compareWithSource(t, source, id, store)
	compareShared(t, source, id, store, maps)
	t.Logf("%+v", store.Stats())
	_, err = arrival.Restore(ctx, engine.Permission{Ask: func() error { return nil }})
	check(err)
	check(source.Destroy(ctx, id, nil))
}

// receiveRound sends a round through a pipe to a store.
func receiveRound(ctx context.Context, round func(context.Context, memory.Sink) (memory.RoundStats, error),
	store *memory.Store) error {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := round(ctx, memory.NewEncoder(w))
		w.CloseWithError(err)
		sent <- err
	}()
	limits := memory.Limits{Pages: 1 << 20, Runs: 1 << 20}
	err := memory.Decode(r, &limits, store.Put)
	r.CloseWithError(err)
	return errors.Join(err, <-sent)
}

// compareWithSource checks that the store has the frozen processes' memory.
func compareWithSource(t *testing.T, n *testNode, id string, store *memory.Store) {
	t.Helper()
	truth, err := memory.NewStore(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer truth.Close()
	wrong := 0
	page, zeros := make([]byte, 4096), make([]byte, 4096)
	for _, m := range readMemory(t, n, id, truth) {
		for _, area := range m.Areas {
			for i := range area.Pages {
				is, got := make([]byte, 4096), page
				if _, err := truth.ReadPage(m.Task, area.Start+i*4096, is); err != nil {
					t.Fatal(err)
				}
				has, err := store.ReadPage(m.Task, area.Start+i*4096, page)
				if err != nil {
					t.Fatal(err)
				}
				if !has {
					got = zeros
				}
				if !bytes.Equal(is, got) {
					wrong++
					if wrong < 10 {
						t.Errorf("process %d, page %#x: sent %v %x…, is %x…", m.Task, area.Start+i*4096,
							has, got[:16], is[:16])
					}
				}
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%d pages are not what they are at the source", wrong)
	}
}
