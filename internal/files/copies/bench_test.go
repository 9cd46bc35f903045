package copies

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/metrics"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/records"
)

// manyFiles makes a tree of small files.
func manyFiles(b *testing.B, directories, each int) string {
	b.Helper()
	root := filepath.Join(b.TempDir(), "tree")
	content := bytes.Repeat([]byte("some content\n"), 100)
	for d := range directories {
		dir := filepath.Join(root, fmt.Sprintf("d%05d", d))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for f := range each {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%05d", f)), content[:200+(d*f)%1000],
				0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	return root
}

func BenchmarkManyFiles(b *testing.B) {
	for _, shape := range []struct{ directories, each int }{{1, 100_000}, {100, 1000}, {12_500, 8}} {
		b.Run(fmt.Sprintf("%dx%d", shape.directories, shape.each), func(b *testing.B) {
			root := manyFiles(b, shape.directories, shape.each)
			var first, idle, ten, named, used time.Duration
			for range b.N {
				s, err := NewSource(Config{Trees: []files.Tree{{Kind: files.VolumeOf, Name: "v", Path: root}},
					Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				peak := heapPeak()
				round := func(kind records.RoundKind) time.Duration {
					stats, err := s.round(context.Background(), io.Discard, kind, nil)
					if err != nil {
						b.Fatal(err)
					}
					return stats.Duration
				}
				first += round(records.LiveRound)
				round(records.LiveRound)
				idle += round(records.LiveRound)
				for i := range 10 {
					path := filepath.Join(root, fmt.Sprintf("d%05d", i*shape.directories/10),
						fmt.Sprintf("file-%05d", i*shape.each/10))
					if err := os.WriteFile(path, []byte(time.Now().String()), 0o644); err != nil {
						b.Fatal(err)
					}
				}
				before := processorTime(b)
				ten += round(records.FinalRound)
				used += processorTime(b) - before
				if err := os.WriteFile(filepath.Join(root, "d00000", "file-5"), []byte(time.Now().String()),
					0o644); err != nil {
					b.Fatal(err)
				}
				if err := os.Rename(filepath.Join(root, "d00000", "file-00000"),
					filepath.Join(root, "d00000", "file-00000")+"x"); err != nil {
					b.Fatal(err)
				}
				named += round(records.FinalRound)
				b.ReportMetric(peak(), "MB-heap")
				os.Rename(filepath.Join(root, "d00000", "file-00000")+"x",
					filepath.Join(root, "d00000", "file-00000"))
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			for name, d := range map[string]time.Duration{"first": first, "idle": idle, "ten": ten,
				"named": named, "ten-processors": used} {
				b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), "ms-"+name)
			}
		})
	}
}

// BenchmarkLargeFile measures the cost of a changed byte in a large file: while the container runs, in the
// freeze, and in the freeze if the byte was changed before the last round.
func BenchmarkLargeFile(b *testing.B) {
	const size = 1 << 30
	root := b.TempDir()
	path := filepath.Join(root, "large")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, io.LimitReader(rand.NewChaCha8([32]byte{}), size)); err != nil {
		b.Fatal(err)
	}
	for range b.N {
		s, err := NewSource(Config{Trees: []files.Tree{{Kind: files.VolumeOf, Name: "v", Path: root}},
			Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		peak := heapPeak()
		round := func(what string, kind records.RoundKind, change bool) {
			if change {
				if _, err := f.WriteAt([]byte(time.Now().String()[20:21]), size/2); err != nil {
					b.Fatal(err)
				}
			}
			stats, err := s.round(context.Background(), io.Discard, kind, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(stats.Duration.Microseconds())/1000, "ms-"+what)
			b.ReportMetric(float64(stats.SentBytes), "bytes-"+what)
		}
		round("first", records.LiveRound, false)
		round("settled", records.LiveRound, false)
		time.Sleep(20 * time.Millisecond) // The clock of files advances.
		round("frozen-change", records.FinalRound, true)
		time.Sleep(20 * time.Millisecond)
		round("live-change", records.LiveRound, true)
		time.Sleep(20 * time.Millisecond)
		round("settled", records.LiveRound, false)
		round("quiet", records.FinalRound, false)
		b.ReportMetric(peak(), "MB-heap")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// processorTime returns the processor time of this process: on a busy machine it means more than the clock.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// heapPeak starts measuring the memory in use, and returns a function that stops and returns the maximum,
// in MB.
func heapPeak() func() float64 {
	ctx, stop := context.WithCancel(context.Background())
	most := make(chan float64)
	go func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		var peak uint64
		for ctx.Err() == nil {
			metrics.Read(sample)
			peak = max(peak, sample[0].Value.Uint64())
			time.Sleep(2 * time.Millisecond)
		}
		most <- float64(peak) / 1e6
	}()
	return func() float64 { stop(); return <-most }
}
