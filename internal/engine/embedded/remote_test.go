package embedded

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
)

// frozenPages reads the memory of a frozen container, by the PIDs that its processes have in it.
type frozenPages struct {
	mu   sync.Mutex
	mem  map[memory.Task]*os.File
	page []byte
}

func openFrozen(t testing.TB, n *testNode, id string) (*frozenPages, []memory.TaskMap) {
	t.Helper()
	group, err := cgroup.Open(n.paths.of(id).cgroup())
	check(t, err)
	pids, err := group.Procs()
	check(t, err)
	f := &frozenPages{mem: map[memory.Task]*os.File{}, page: make([]byte, 4096)}
	var maps []memory.TaskMap
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		check(t, err)
		if process.State == 'Z' {
			continue
		}
		task := memory.Task(process.NamespaceID)
		file, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		check(t, err)
		t.Cleanup(func() { file.Close() })
		f.mem[task] = file
		maps = append(maps, memory.TaskMap{Task: task, Areas: present(t, pid, lazyMappings(t, pid))})
	}
	return f, maps
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bring provides one page with the source's content.
func (f *frozenPages) bring(remote memory.RemotePages, task memory.Task, address uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.mem[task].ReadAt(f.page, int64(address)); err != nil {
		return fmt.Errorf("page %#x of process %d: %w", address, task, err)
	}
	return remote.Put(memory.Run{Task: task, Address: address, Pages: 1}, f.page)
}

// answer provides requested pages until nothing is missing.
func (f *frozenPages) answer(t testing.TB, remote memory.RemotePages) error {
	for {
		want, err := remote.Next(t.Context())
		if err == nil {
			err = f.bring(remote, want.Task, want.Address)
		}
		if err != nil {
			return err
		}
	}
}

// push provides so many of the pages that were missing when the connection was made, in random order.
func (f *frozenPages) push(remote memory.RemotePages, most int) error {
	var all []memory.RemoteFault
	for _, m := range remote.Missing() {
		for _, a := range m.Areas {
			for i := range a.Pages {
				all = append(all, memory.RemoteFault{Task: m.Task, Address: a.Start + i*4096})
			}
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, one := range all[:min(most, len(all))] {
		if err := f.bring(remote, one.Task, one.Address); err != nil {
			return err
		}
	}
	return nil
}

// moveRemote moves a container until it runs, while all of its private pages stay at the source. CRIU
// touches some pages before that; the first connection, which is returned, provides them.
func moveRemote(t testing.TB, source, target *testNode, id string) (*frozenPages, memory.RemotePages,
	<-chan error) {
	t.Helper()
	ctx := t.Context()
	ctr, err := source.Inspect(ctx, id)
	check(t, err)
	arrival, err := target.PrepareRestore(ctx, ctr.Definition, newNetns(t))
	check(t, err)
	t.Cleanup(func() { arrival.Close() })
	store, err := memory.NewStore(8 << 30)
	check(t, err)
	t.Cleanup(func() { store.Close() })
	if _, err := target.RemotePages(ctx, id); !errors.Is(err, engine.ErrNotFilling) {
		t.Errorf("LatePages before there is a pager: %v", err)
	}
	check(t, arrival.FillFrom(ctx, store))
	departure, err := source.PrepareDump(ctx, id, engine.DumpOptions{LeaveMemory: true})
	check(t, err)
	t.Cleanup(func() { departure.Close() })
	_, err = departure.Freeze(ctx)
	check(t, err)
	images := mountMemoryDir(t)
	check(t, departure.Dump(ctx, images))
	copyFiles(t, images, arrival.ImagesDir())
	copyTrees(t, source, arrival, id)
	pages, maps := openFrozen(t, source, id)
	check(t, store.Remote(maps))
	check(t, store.Keep(maps))
	answered, connected := make(chan error, 1), make(chan memory.RemotePages, 1)
	go func() {
		remote, err := target.RemotePages(ctx, id)
		connected <- remote
		if err == nil {
			err = pages.answer(t, remote)
		}
		answered <- err
	}()
	_, err = arrival.Restore(ctx, engine.Permission{Ask: func() error { return nil }})
	check(t, err)
	remote := <-connected
	if remote == nil {
		t.Fatal(<-answered)
	}
	t.Cleanup(func() { remote.Close() })
	waitFor(t, "the monitor to have the container", func() bool {
		ctr, err := target.Inspect(ctx, id)
		return err == nil && (ctr.State != engine.Running || ctr.PID > 0)
	})
	return pages, remote, answered
}

// TestRemotePages moves containers whose memory follows over two connections, one after the other.
func TestRemotePages(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string][]string{
		"chaos": {"-mb", "64", "-chaos"},
		"all":   {"-mb", "32", "-children", "2", "-zombie", "-lock", "-huge", "-chaos"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newChaosNodes(t)
			d := startChaos(t, a, append(arguments, "-pause", "1ms")...)
			for range 2 {
				pages, first, answered := moveRemote(t, a, b, d.ID)
				check(t, pages.push(first, 1000))
				if !refusesFilling(t, b, d.ID) {
					t.Error("the memory is complete")
				}
				second, err := b.RemotePages(t.Context(), d.ID) // like a restarted agent
				check(t, err)
				if err := <-answered; err == nil || errors.Is(err, io.EOF) {
					t.Errorf("the first connection ends with %v", err)
				}
				over := make(chan error, 1)
				go func() { over <- pages.answer(t, second) }()
				check(t, pages.push(second, 1<<30))
				if err := <-over; !errors.Is(err, io.EOF) {
					t.Errorf("at the end: %v", err)
				}
				check(t, second.Close())
				check(t, a.Destroy(t.Context(), d.ID, nil))
				report := filled(t, b, d.ID)
				if report.State != memory.Filled || report.LeftPages != 0 || report.RemoteLeft != 0 ||
					report.FetchedPages == 0 {
					t.Fatalf("report: %+v", report)
				}
				t.Logf("%+v", report)
				stillGood(t, b, d.ID)
				if _, err := b.RemotePages(t.Context(), d.ID); !errors.Is(err, engine.ErrNotFilling) {
					t.Errorf("LatePages of complete memory: %v", err)
				}
				a, b = b, a
			}
		})
	}
}

// TestRemotePagesStop stops a container that waits for pages, and checks that nothing is left of it.
func TestRemotePagesStop(t *testing.T) {
	t.Parallel()
	a, b := newChaosNodes(t)
	d := startChaos(t, a, "-mb", "64", "-threads", "4")
	_, remote, answered := moveRemote(t, a, b, d.ID)
	check(t, b.Stop(t.Context(), d.ID, time.Millisecond))
	if err := <-answered; err == nil {
		t.Error("the answers end without an error")
	}
	if _, err := remote.Next(t.Context()); err == nil {
		t.Error("a page is wanted of a container that was stopped")
	}
	check(t, b.Remove(t.Context(), d.ID, true))
	wantNothing(t, b, d.ID)
	check(t, a.Destroy(t.Context(), d.ID, nil))
}

// TestRemotePagesLost gives up the missing pages. The program dies of its first access, or finds nothing
// wrong, and the container can no longer be moved.
func TestRemotePagesLost(t *testing.T) {
	t.Parallel()
	a, b := newChaosNodes(t)
	d := startChaos(t, a, "-mb", "64", "-pause", "1s", "-threads", "0")
	_, remote, _ := moveRemote(t, a, b, d.ID)
	check(t, remote.GiveUp(t.Context(), true))
	report := filled(t, b, d.ID)
	if report.LostPages == 0 && report.State == memory.Filled {
		t.Errorf("report: %+v", report)
	}
	waitFor(t, "the end of the program", func() bool {
		ctr, err := b.Inspect(t.Context(), d.ID)
		return err == nil && ctr.State == engine.Exited
	})
	if out := b.output(d.ID); strings.Contains(out, "BAD") {
		t.Errorf("%.2000s", out[strings.Index(out, "BAD"):])
	}
	check(t, a.Destroy(t.Context(), d.ID, nil))
}
