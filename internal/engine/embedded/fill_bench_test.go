package embedded

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
)

// BenchmarkFill moves programs of several sizes. It reports how long the restore takes until the program
// runs, and how long its memory is filled after that. It needs four times the memory that it moves.
func BenchmarkFill(b *testing.B) {
	for _, megabytes := range []int{16, 512, 2048} {
		for _, busy := range []bool{false, true} {
			name, pause := "idle", "1h"
			if busy {
				name, pause = "busy", "1ms"
			}
			b.Run(fmt.Sprintf("%dMiB-%s", megabytes, name), func(b *testing.B) {
				source, target := newTestNode(b), newTestNode(b)
				chaosLayer(b, source)
				chaosLayer(b, target)
				d := definition(b, "chaos", "-mb", fmt.Sprint(megabytes), "-pause", pause)
				source.start(d)
				waitFor(b, "the workload",
					func() bool { return strings.Contains(source.output(d.ID), "ready") })
				s := samples{}
				for b.Loop() {
					s.move(b, source, target, d.ID)
					source, target = target, source
				}
				s.report(b)
			})
		}
	}
}

// samples are the durations that a benchmark reports.
type samples map[string][]float64

func (s samples) add(name string, value float64) { s[name] = append(s[name], value) }

func (s samples) report(b *testing.B) {
	for name, values := range s {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], name)
	}
	b.ReportMetric(0, "ns/op")
}

func (s samples) move(b *testing.B, source, target *testNode, id string) {
	ctx := b.Context()
	ctr, err := source.Inspect(ctx, id)
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	check(err)
	arrival, err := target.PrepareRestore(ctx, ctr.Definition, newNetns(b))
	check(err)
	defer arrival.Close()
	store, err := memory.NewStore(8 << 30)
	check(err)
	defer store.Close()
	begin := time.Now()
	check(arrival.FillFrom(ctx, store))
	s.add("prepare-ms", time.Since(begin).Seconds()*1e3)
	departure, err := source.PrepareDump(ctx, id, engine.DumpOptions{LeaveMemory: true})
	check(err)
	defer departure.Close()
	_, err = departure.Freeze(ctx)
	check(err)
	check(departure.Dump(ctx, arrival.ImagesDir()))
	copyTrees(b, source, arrival, id)
	readMemory(b, source, id, store)
	begin = time.Now()
	resumed, err := arrival.Restore(ctx, engine.Permission{Ask: func() error { return nil }})
	check(err)
	s.add("restore-ms", resumed.Sub(begin).Seconds()*1e3)
	report := filled(b, target, id)
	if report.State != memory.Filled {
		b.Fatalf("%+v", report)
	}
	s.add("handover-ms", report.Started.Sub(begin).Seconds()*1e3)
	s.add("registered-ms", report.Resumed.Sub(begin).Seconds()*1e3)
	s.add("fill-ms", report.FillSeconds*1e3)
	s.add("faults", float64(report.FaultedPages))
	s.add("fault-p50-us", report.FaultMedianSeconds*1e6)
	s.add("fault-p99-us", report.FaultP99Seconds*1e6)
	check(source.Destroy(ctx, id, nil))
}
