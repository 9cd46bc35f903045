package embedded

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
)

// BenchmarkFreeze moves programs of several sizes by pre-copy and prints the durations of the phases from
// the freeze to the resume, in milliseconds (the minimum and the median). Concurrent phases overlap. It
// needs three times the memory.
func BenchmarkFreeze(b *testing.B) {
	for _, megabytes := range []int{1, 64, 256, 1024, 2048, 4096} {
		for _, hide := range []bool{false, true} {
			name := "whole"
			if hide {
				name = "cut"
			}
			b.Run(fmt.Sprintf("%dMiB-%s", megabytes, name), func(b *testing.B) {
				source, target := newTestNode(b), newTestNode(b)
				chaosLayer(b, source)
				chaosLayer(b, target)
				d := definition(b, "chaos", "-mb", fmt.Sprint(megabytes), "-pause", "1h")
				source.start(d)
				waitFor(b, "the workload",
					func() bool { return strings.Contains(source.output(d.ID), "ready") })
				p := phases{samples: samples{}}
				for b.Loop() {
					p.move(b, source, target, d.ID, hide)
					source, target = target, source
				}
				p.print(b)
			})
		}
	}
}

// BenchmarkFreezeShared does the same with idle processes that share memory, carried in rounds and by CRIU.
func BenchmarkFreezeShared(b *testing.B) {
	for _, megabytes := range []int{1, 64, 256, 1024} {
		for _, way := range []string{"carried", "criu"} {
			b.Run(fmt.Sprintf("%dMiB-%s", megabytes, way), func(b *testing.B) {
				source, target := newSharerNodes(b)
				// half of it as a memfd
				d := definition(b, "sharer", fmt.Sprint(max(megabytes*2/3, 1)), "1", "100000000", "plain")
				source.start(d)
				waitFor(b, "the workload",
					func() bool { return strings.Contains(source.output(d.ID), "ready") })
				p := phases{samples: samples{}, giveShared: way == "criu"}
				for b.Loop() {
					p.move(b, source, target, d.ID, true)
					source, target = target, source
				}
				p.print(b)
			})
		}
	}
}

// phases collects durations by phase.
type phases struct {
	samples
	order      []string
	last       time.Time
	giveShared bool // CRIU dumps shared memory
}

// did records the time since the last call.
func (p *phases) did(name string) {
	now := time.Now()
	p.note(name, now.Sub(p.last))
	p.last = now
}

func (p *phases) note(name string, d time.Duration) {
	if !slices.Contains(p.order, name) {
		p.order = append(p.order, name)
	}
	p.add(name, d.Seconds()*1e3)
}

func (p *phases) print(b *testing.B) {
	var line strings.Builder
	for _, name := range p.order {
		values := p.samples[name]
		slices.Sort(values)
		fmt.Fprintf(&line, "%s %.1f/%.1f  ", name, values[0], values[len(values)/2])
	}
	b.Log(line.String())
	b.ReportMetric(p.samples["FREEZE"][len(p.samples["FREEZE"])/2], "freeze-ms")
	b.ReportMetric(0, "ns/op")
}

func (p *phases) move(b *testing.B, source, target *testNode, id string, hide bool) {
	ctx := b.Context()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ctr, err := source.Inspect(ctx, id)
	check(err)
	arrival, err := target.PrepareRestore(ctx, ctr.Definition, newNetns(b))
	check(err)
	defer arrival.Close()
	store, err := memory.NewStore(8 << 30)
	check(err)
	defer store.Close()
	check(arrival.FillFrom(ctx, store))
	group, err := cgroup.Open(source.paths.of(id).cgroup())
	check(err)
	pages := memory.NewSource(memory.SourceConfig{Processes: group.Procs})
	defer pages.Close()
	if p.giveShared {
		check(pages.GiveShared("CRIU dumps it"))
	}
	for range 3 {
		check(receiveRound(ctx, pages.Round, store))
	}
	departure, err := source.PrepareDump(ctx, id, engine.DumpOptions{LeaveMemory: true, Whole: !hide})
	check(err)
	defer departure.Close()
	begin, err := departure.Freeze(ctx)
	check(err)
	p.last = begin
	p.did("freeze")
	leaveShared(b, departure, pages)
	p.did("shared")
	images := arrival.ImagesDir()
	last := make(chan error, 1)
	var beside time.Duration
	go func() {
		from := time.Now()
		err := receiveRound(ctx, pages.Final, store)
		beside = time.Since(from)
		last <- err
	}()
	check(departure.Dump(ctx, images))
	p.did("dump")
	check(<-last)
	p.note("(final beside)", beside)
	p.did("wait final")
	check(receiveRound(ctx, pages.Final, store))
	p.did("final")
	left, err := departure.LeftOut(images)
	check(err)
	check(receiveRound(ctx, func(ctx context.Context, sink memory.Sink) (memory.RoundStats, error) {
		return pages.Complete(ctx, sink, left)
	}, store))
	p.did("complete")
	m, err := pages.Map()
	check(err)
	p.did("map")
	var wire bytes.Buffer
	check(memory.EncodeMap(&wire, m))
	p.did("encode")
	m, err = memory.DecodeMap(&wire)
	check(err)
	p.did("decode")
	copyTrees(b, source, arrival, id)
	p.did("trees")
	check(store.Keep(m))
	p.did("keep")
	ask := func() error { p.did("restored"); return nil }
	resumed, err := arrival.Restore(ctx, engine.Permission{Ask: ask})
	check(err)
	p.note("resume", resumed.Sub(p.last))
	p.note("FREEZE", resumed.Sub(begin))
	report := filled(b, target, id)
	p.note("(handed over)", report.Started.Sub(begin))
	p.note("(registered)", report.Resumed.Sub(begin))
	p.note("(fill)", time.Duration(report.FillSeconds*1e9))
	check(source.Destroy(ctx, id, nil))
}
