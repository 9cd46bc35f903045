package memory

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// smallOrdering returns an ordering with very small parts.
func smallOrdering() ordering { return ordering{size: 8 * uint64(PageSize())} }

// TestEstimate: the written pages of a part follow from the writer's last position below it, or nearby.
func TestEstimate(t *testing.T) {
	now, size := time.Now(), uint64(PageSize())
	parts := func(busy ...int) []part {
		all := make([]part, 6)
		for i := range all {
			all[i].start, all[i].end = uint64(100+2*i)*size, uint64(102+2*i)*size
		}
		for _, i := range busy {
			all[i].busy, all[i].front = now.Add(-busyFor/2), uint64(101+2*i)*size
		}
		return all
	}
	for _, c := range []struct {
		parts         []part
		rate, seconds float64
		want          []float64
	}{
		{parts(), 2, 10, []float64{0, 0, 0, 0, 0, 0}},
		{parts(2), 0, 10, []float64{0, 0, 0, 0, 0, 0}},
		{parts(2), 1, 4, []float64{0, 0, 1, 2, 1, 0}},
		{parts(4), 1, 4.5, []float64{1.5, 0, 0, 0, 1, 2}},
		{parts(0, 5), 1, 2.5, []float64{1, 1.5, 0, 0, 0, 1}},
	} {
		estimate(c.parts, c.rate, c.seconds, now)
		for i, want := range c.want {
			if got := c.parts[i].loss; got != want {
				t.Errorf("%+v: of part %d %.1f pages will be written, want %.1f", c, i, got, want)
			}
		}
	}
	old := parts(4)
	estimate(old, 1, 10, now.Add(busyFor))
	if old[5].loss != 0 {
		t.Error("nobody has written for long, and part 5 will be written")
	}
}

// TestWhatIsWrittenSoonLeavesLast: a program writes one page after the other while a round sends them.
// Pages that it will write soon are sent last, so the next round has fewer.
func TestWhatIsWrittenSoonLeavesLast(t *testing.T) {
	const pages, from, perRun = 2048, 300, 4
	next := func(o ordering) RoundStats {
		p := start(t, "script", 0, 0)
		for _, command := range []string{"map 0 %d", "write 0 %d 1"} {
			if answer := p.obey(fmt.Sprintf(command, pages)); answer != "ok" {
				t.Fatalf("the script says %q", answer)
			}
		}
		s := NewSource(SourceConfig{Processes: p.group.Procs})
		s.ordering = o
		target, at, left := newCopied(t), from, 0
		_, err := s.Round(context.Background(), sinkFunc(func(run Run, data []byte) error {
			for left += int(run.Pages); left >= 32; left -= 32 {
				p.obey(fmt.Sprintf("write %d %d 2", at%pages, perRun))
				at += perRun
			}
			return target.place(run, data)
		}))
		must(t, err)
		if at < from+pages/32*perRun {
			t.Fatalf("only %d pages were written in the first round", at-from)
		}
		second := target.round(s, false)
		p.freeze()
		target.round(s, true)
		maps, err := s.Map()
		must(t, err)
		target.verify(p, maps)
		p.thaw()
		must(t, s.Close())
		if written := second.Written() / uint64(PageSize()); written < uint64(at-from) ||
			written > uint64(at-from)+16 {
			t.Errorf("%d pages were written in the first round, and the second says %d: %+v", at-from,
				written, second)
		}
		return second
	}
	asFound := next(ordering{few: pages * 2}).Pages
	ordered := next(ordering{size: 32 * uint64(PageSize())}).Pages
	t.Logf("the second round has %d pages, and %d if they leave as they are found", ordered, asFound)
	if ordered > asFound/2 {
		t.Errorf("the second round has %d pages, and %d if they leave as they are found", ordered, asFound)
	}
}

// TestWhatWasFoundLeaves: the list of mappings may repeat one that has grown, or skip some, and pages are
// written in all of them. All pages found are sent in the round: no later round finds them.
func TestWhatWasFoundLeaves(t *testing.T) {
	const pages = 2048
	size := uint64(PageSize())
	p := start(t, "script", 0, 0)
	for _, command := range []string{"map 0 %d", "write 0 %d 1"} {
		if answer := p.obey(fmt.Sprintf(command, pages)); answer != "ok" {
			t.Fatalf("the script says %q", answer)
		}
	}
	s := NewSource(SourceConfig{Processes: p.group.Procs, Tracking: WriteProtect})
	target := newCopied(t)
	target.round(s, false)
	process := s.tasks.inOrder()[0]
	if process.tracking != WriteProtect {
		t.Fatalf("it is tracked by %s", process.tracking)
	}
	p.obey(fmt.Sprintf("write 0 %d 2", pages))
	areas, err := process.lazyAreas()
	must(t, err)
	var told []area
	for _, m := range areas {
		if m.End-m.Start >= pages*size {
			before := m
			before.End = m.Start + 3*size
			told = append(told, before)
		}
		told = append(told, m)
	}
	must(t, process.pagemap.Reopen(process.space))
	must(t, process.tracker.begin(false))
	r := newReader(sinkFunc(target.place), &RoundStats{})
	must(t, pass{process, r, s.ordering}.sendOrdered(context.Background(), told))
	process.tracker.end()
	target.round(s, false)
	p.freeze()
	target.round(s, true)
	maps, err := s.Map()
	must(t, err)
	target.verify(p, maps)
	p.thaw()
	must(t, s.Close())
}
