package memory

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
)

const benchMebibytes = 1024

// BenchmarkAttach attaches to a process and detaches. ns/op is the whole time; stopped is how long the
// process was stopped.
func BenchmarkAttach(b *testing.B) {
	for _, kind := range []string{"block", "main-spin"} {
		b.Run(kind, func(b *testing.B) {
			p := start(b, kind, 1, 1)
			var stopped []time.Duration
			for b.Loop() {
				fd, d, err := inject.OpenUserfault(p.pid())
				must(b, err)
				stopped = append(stopped, d)
				w, err := kernel.NewWriteProtect(fd)
				must(b, err)
				must(b, w.Close())
			}
			slices.Sort(stopped)
			b.ReportMetric(float64(stopped[len(stopped)/2].Nanoseconds()), "stopped-median-ns")
			b.ReportMetric(float64(stopped[len(stopped)*9/10].Nanoseconds()), "stopped-p90-ns")
		})
	}
}

// attached returns a source that has attached to a process with this much memory, and its task.
func attached(b *testing.B, kind string) (*program, *Source, *task) {
	p := start(b, kind, benchMebibytes, 1)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	b.Cleanup(func() { must(b, s.Close()) })
	must(b, s.tasks.update(false, &RoundStats{}))
	return p, s, s.tasks.all[p.pid()]
}

func scanAll(b *testing.B, t *task) (pages uint64) {
	areas, err := t.lazyAreas()
	must(b, err)
	for _, m := range areas {
		must(b, t.tracker.written(t.pagemap, m, func(ranges []kernel.PageRange) error {
			for _, r := range ranges {
				pages += (r.End - r.Start) / uint64(PageSize())
			}
			return nil
		}))
	}
	return pages
}

// BenchmarkScan scans a GiB for written pages: all, none, or some that a thread writes meanwhile.
func BenchmarkScan(b *testing.B) {
	b.Run("all", func(b *testing.B) {
		_, s, t := attached(b, "block")
		for b.Loop() {
			b.StopTimer()
			must(b, s.tasks.attach(t, &RoundStats{}))
			b.StartTimer()
			if scanAll(b, t) < benchMebibytes*256 {
				b.Fatal("not all pages were found")
			}
		}
	})
	for _, kind := range []string{"block", "write"} {
		b.Run("while "+kind, func(b *testing.B) {
			_, _, t := attached(b, kind)
			scanAll(b, t)
			pages := uint64(0)
			for b.Loop() {
				pages += scanAll(b, t)
			}
			b.ReportMetric(float64(pages)/float64(b.N), "pages/op")
		})
	}
}

// BenchmarkRound sends a GiB: scan, read, look for zeros, encode.
func BenchmarkRound(b *testing.B) {
	for name, sink := range map[string]Sink{"discard": ignoreRuns(),
		"copy": NewEncoder(&copyWriter{make([]byte, 1<<20)})} {
		b.Run(name, func(b *testing.B) {
			_, s, t := attached(b, "block")
			b.SetBytes(benchMebibytes << 20)
			var total RoundStats
			for b.Loop() {
				b.StopTimer()
				must(b, s.tasks.attach(t, &RoundStats{}))
				b.StartTimer()
				stats, err := s.Round(context.Background(), sink)
				must(b, err)
				total.Scan, total.Read, total.Write = total.Scan+stats.Scan, total.Read+stats.Read,
					total.Write+stats.Write
			}
			for unit, d := range map[string]time.Duration{"scan-ns/op": total.Scan, "read-ns/op": total.Read,
				"write-ns/op": total.Write} {
				b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), unit)
			}
		})
	}
	b.Run("hash", func(b *testing.B) {
		p := start(b, "block", benchMebibytes, 1)
		s := NewSource(SourceConfig{Processes: p.group.Procs, Tracking: Hashing})
		b.SetBytes(benchMebibytes << 20)
		for b.Loop() {
			_, err := s.Round(context.Background(), ignoreRuns())
			must(b, err)
		}
		must(b, s.Close())
	})
}

// copyWriter stands for a connection's buffer.
type copyWriter struct{ buffer []byte }

func (c *copyWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		rest = rest[copy(c.buffer, rest):]
	}
	return len(p), nil
}

// BenchmarkFinal measures a freeze with few changes: two final rounds, and the map.
func BenchmarkFinal(b *testing.B) {
	p, s, _ := attached(b, "block")
	_, err := s.Round(context.Background(), ignoreRuns())
	must(b, err)
	for b.Loop() {
		b.StopTimer()
		p.freeze()
		b.StartTimer()
		for range 2 {
			_, err := s.Final(context.Background(), ignoreRuns())
			must(b, err)
		}
		_, err := s.Map()
		must(b, err)
		b.StopTimer()
		p.thaw()
		b.StartTimer()
	}
}

// BenchmarkClose detaches from a process whose GiB is write-protected.
func BenchmarkClose(b *testing.B) {
	_, s, t := attached(b, "block")
	for b.Loop() {
		b.StopTimer()
		must(b, s.tasks.attach(t, &RoundStats{}))
		scanAll(b, t)
		b.StartTimer()
		must(b, t.tracker.close())
		b.StopTimer()
		t.tracker = nil
		b.StartTimer()
	}
}

func BenchmarkDecode(b *testing.B) {
	var wire bytes.Buffer
	e := NewEncoder(&wire)
	data := make([]byte, MaxRunPages*PageSize())
	for i := range 64 {
		must(b, e.Put(Run{Task: 1, Address: uint64(i) << 24, Pages: MaxRunPages}, data))
	}
	b.SetBytes(int64(wire.Len()))
	for b.Loop() {
		limits := Limits{Pages: 1 << 30, Runs: 1 << 30}
		must(b, Decode(bytes.NewReader(wire.Bytes()), &limits, func(Run, []byte) error { return nil }))
	}
}
