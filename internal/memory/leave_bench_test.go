package memory

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
)

// BenchmarkFreeze measures a freeze at the source: two final rounds, the map, and the list of remote pages.
// Before it nothing was sent (post-copy), or everything but a program's latest writes (hybrid, pre-copy).
func BenchmarkFreeze(b *testing.B) {
	for _, mebibytes := range []int{1024, 4096} {
		for kind, writes := range map[string]int{"block": 0, "write": 25000} { // pages: up to 100 MB
			for _, way := range []string{"post-copy", "hybrid", "pre-copy"} {
				b.Run(fmt.Sprintf("%d MiB/%s/%s", mebibytes, kind, way), func(b *testing.B) {
					benchmarkFreeze(b, start(b, kind, mebibytes, 1), way, writes)
				})
			}
		}
	}
}

func benchmarkFreeze(b *testing.B, p *program, way string, writes int) {
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	if way == "post-copy" {
		s.Leave()
	}
	round := func(do func(context.Context, Sink) (RoundStats, error)) RoundStats {
		stats, err := do(context.Background(), ignoreRuns())
		must(b, err)
		return stats
	}
	round(s.Round)
	if way == "hybrid" {
		s.Leave()
	}
	found, used := uint64(0), time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		round(s.Round)
		until := p.check() + writes
		await.True(b, "writes", func() bool { return p.check() >= until })
		p.freeze()
		before := cpuTime(b)
		b.StartTimer()
		for range 2 {
			stats := round(s.Final)
			found += stats.Pages + stats.RemotePages
		}
		_, err := s.Map()
		must(b, err)
		if way != "pre-copy" {
			_, _, err = s.Remote()
			must(b, err)
		}
		b.StopTimer()
		used += cpuTime(b) - before
		p.thaw()
		b.StartTimer()
	}
	b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(found)/float64(b.N), "pages/op")
	must(b, s.Close())
	p.end()
}

// cpuTime returns the processor time of this process: on a busy machine it says more than the clock.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(unix.TimevalToNsec(usage.Utime) + unix.TimevalToNsec(usage.Stime))
}
