package criu

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// TestLazyDump leaves memory out of the images. It checks that CRIU lists what package memory sends, with
// the same map, and that the container continues afterwards, and also when the dump is given up.
func TestLazyDump(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	for range 10 {
		client.count()
		s := memory.NewSource(memory.SourceConfig{Processes: c.group.Procs})
		received := map[memory.Task]map[uint64][]byte{}
		for range 3 {
			receive(t, received, s.Round)
			client.count()
		}
		request := c.request()
		request.LazyPages = true
		d, err := findTool(t).StartDump(deadline(t), request)
		must(t, err)
		must(t, c.refreeze())
		dumped := make(chan error)
		go func() { dumped <- d.Run(deadline(t), c.images) }()
		receive(t, received, s.Final) // in parallel to the dump
		must(t, <-dumped)
		must(t, d.Release(c.refreeze))
		receive(t, received, s.Final) // what CRIU has changed
		if stats, err := s.Complete(t.Context(), memory.NewEncoder(io.Discard),
			memory.Left{Listed: wanted(t, c.images)}); err != nil || stats.Pages > 0 {
			t.Errorf("CRIU leaves out what was not sent: %+v, %v", stats, err)
		}
		compareLeftOut(t, c, s, received)
		c.abort()
		client.count()
		must(t, s.Close())
		must(t, d.Close())
		c.emptyImages()
	}
}

func wanted(t testing.TB, imagesDir string) []memory.TaskMap {
	t.Helper()
	left, err := LeftOut(imagesDir)
	must(t, err)
	var maps []memory.TaskMap
	for _, l := range left {
		m := memory.TaskMap{Task: memory.Task(l.PID)}
		for _, r := range l.Ranges {
			m.Areas = append(m.Areas, memory.Area{Start: r.Start, Pages: r.Pages})
		}
		maps = append(maps, m)
	}
	return maps
}

func receive(t *testing.T, into map[memory.Task]map[uint64][]byte,
	round func(context.Context, memory.Sink) (memory.RoundStats, error)) {
	t.Helper()
	var wire bytes.Buffer
	stats, err := round(t.Context(), memory.NewEncoder(&wire))
	must(t, err)
	if len(stats.Refused) > 0 {
		t.Errorf("not tracked: %+v", stats.Refused)
	}
	limits := memory.Limits{Pages: 1 << 30, Runs: 1 << 30}
	must(t, memory.Decode(&wire, &limits, func(run memory.Run, data []byte) error {
		if into[run.Task] == nil {
			into[run.Task] = map[uint64][]byte{}
		}
		size := memory.PageSize()
		for i := range int(run.Pages) {
			page := make([]byte, size)
			if !run.Zero {
				copy(page, data[i*size:])
			}
			into[run.Task][run.Address+uint64(i*size)] = page
		}
		return nil
	}))
}

func compareLeftOut(t *testing.T, c *container, s *memory.Source,
	received map[memory.Task]map[uint64][]byte) {
	t.Helper()
	left, err := LeftOut(c.images)
	must(t, err)
	maps, err := s.Map()
	must(t, err)
	listed := map[memory.Task]map[uint64]bool{}
	for _, m := range maps {
		listed[m.Task] = map[uint64]bool{}
		for _, a := range m.Areas {
			for i := range a.Pages {
				listed[m.Task][a.Start+i*uint64(memory.PageSize())] = true
			}
		}
	}
	pids, err := c.group.Procs()
	must(t, err)
	total := 0
	for _, pid := range pids {
		p, err := kernel.ReadProcess(pid)
		must(t, err)
		mem, err := os.Open(filepath.Join("/proc", itoa(pid), "mem"))
		must(t, err)
		defer mem.Close()
		for _, m := range left {
			if int(m.PID) != p.NamespaceID {
				continue
			}
			for _, r := range m.Ranges {
				for i := range r.Pages {
					address := r.Start + i*uint64(memory.PageSize())
					is := make([]byte, memory.PageSize())
					_, err := mem.ReadAt(is, int64(address))
					must(t, err)
					total++
					if !listed[memory.Task(m.PID)][address] {
						t.Errorf("CRIU leaves out %#x of process %d, the map does not list it", address,
							m.PID)
					}
					if !bytes.Equal(received[memory.Task(m.PID)][address], is) {
						t.Errorf("%#x of process %d is not what was sent", address, m.PID)
					}
				}
			}
		}
	}
	images := 0
	entries, err := os.ReadDir(c.images)
	must(t, err)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), "pages-") {
			images += int(info.Size()) / memory.PageSize()
		}
	}
	t.Logf("%d pages left out, %d in the images, %d maps", total, images, len(maps))
	if total < 100 {
		t.Errorf("only %d pages are left out", total)
	}
}

func FuzzParsePagemap(f *testing.F) {
	f.Add(
		[]byte(
			"\x19\x43\x56\x54\x25\x40\x08\x56\x02\x00\x00\x00\x08\x01\x08\x00\x00\x00\x08\x80\x20\x10\x00\x20\x02\x28\x03"))
	f.Fuzz(func(t *testing.T, input []byte) {
		ranges, err := parsePagemap(bytes.NewReader(input))
		if err == nil && len(ranges) > len(input) {
			t.Errorf("%d ranges in %d bytes", len(ranges), len(input))
		}
	})
}
