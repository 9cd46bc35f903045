package memory

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/kernel"
)

// TestFrozen reads processes, some of which share memory copy-on-write, by several goroutines in parallel,
// and compares all.
func TestFrozen(t *testing.T) {
	p := start(t, "fork", 8, 1)
	p.progress()
	p.freeze()
	pids, err := p.group.Procs()
	must(t, err)
	frozen, err := OpenFrozen(pids)
	must(t, err)
	defer frozen.Close()
	before := partsOf(t, pids)
	var readers sync.WaitGroup
	for _, pid := range pids {
		task := taskOf(t, pid)
		for range 2 {
			truth := pagesOf(t, pid)
			readers.Go(func() {
				page := make([]byte, PageSize())
				for address, content := range truth {
					if err := frozen.Read(task, address, page); err != nil || !bytes.Equal(page, content) {
						t.Errorf("task %d at %#x: %v, or it is another page", task, address, err)
					}
				}
			})
		}
	}
	readers.Wait()
	if after := partsOf(t, pids); after != before {
		t.Errorf("the processes have %d bytes after they were read, and had %d", after, before)
	}
	p.thaw()
	p.progress()
}

// partsOf returns the total memory of processes.
func partsOf(t *testing.T, pids []int) (sum uint64) {
	t.Helper()
	for _, pid := range pids {
		use, err := kernel.ReadPrivateUse(pid)
		must(t, err)
		sum += use.Parts
	}
	return sum
}

// TestFrozenRefuses: memory that cannot be read is refused with the reason.
func TestFrozenRefuses(t *testing.T) {
	p := start(t, "script", 0, 0)
	p.obey("map 0 4")
	p.obey("write 0 2 1")
	p.obey("hide 0 1")
	p.freeze()
	size := uint64(PageSize())
	frozen, err := OpenFrozen([]int{p.pid(), 1 << 30})
	must(t, err)
	task := taskOf(t, p.pid())
	must(t, frozen.Read(task, scriptBase, make([]byte, 2*size)))
	for _, c := range []struct {
		task    Task
		address uint64
		bytes   uint64
		want    string
	}{
		{task + 1, scriptBase, size, "no process with memory has this number"},
		{task, scriptBase + 1, size, "no whole pages"},
		{task, scriptBase, size - 1, "no whole pages"},
		{task, maxAddress - size, 2 * size, "no whole pages"},
		{task, 0, size, "read the page at 0x0"},
		{task, scriptBase + 3*size, 2 * size, "read the page at 0x600000004000"},
	} {
		err := frozen.Read(c.task, c.address, make([]byte, c.bytes))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	p.end()
	if err := frozen.Read(task, scriptBase, make([]byte, size)); err == nil ||
		!strings.Contains(err.Error(), "its memory is gone") {
		t.Errorf("a process that has ended: %v", err)
	}
	must(t, frozen.Close())
	if _, err := OpenFrozen([]int{os.Getpid(), os.Getpid()}); err == nil {
		t.Error("two processes have the same number")
	}
}

// BenchmarkFrozen reads a GiB, some pages at a time.
func BenchmarkFrozen(b *testing.B) {
	p := start(b, "block", benchMebibytes, 1)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	s.Leave()
	target := copied{t: b}
	target.round(s, false)
	p.freeze()
	target.round(s, true)
	remote, _, err := s.Remote()
	must(b, err)
	frozen, err := OpenFrozen([]int{p.pid()})
	must(b, err)
	for _, pages := range []uint64{1, 16, 256} {
		b.Run("", func(b *testing.B) {
			buffer := make([]byte, pages*uint64(PageSize()))
			b.SetBytes(benchMebibytes << 20)
			for b.Loop() {
				for _, a := range remote[0].Areas {
					for ; a.Pages >= pages; a.Pages -= pages {
						must(b, frozen.Read(remote[0].Task, a.Start, buffer))
						a.Start += uint64(len(buffer))
					}
				}
			}
		})
	}
	must(b, frozen.Close())
	p.thaw()
	must(b, s.Close())
}
