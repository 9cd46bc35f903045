package memory

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// TestWatch observes the writes of programs, with each method, and checks that they continue undisturbed.
func TestWatch(t *testing.T) {
	for _, way := range []Tracking{WriteProtect, Hashing} {
		for _, c := range []struct {
			kind      string
			mebibytes int
			most      float64 // MiB
		}{
			{"write", 16, 60}, {"wait", 16, 4}, {"write-huge", 16, 60}, {"churn-fork", 2, 500},
		} {
			t.Run(fmt.Sprint(way, " ", c.kind), func(t *testing.T) {
				p := start(t, c.kind, c.mebibytes, 2)
				w := NewWatcher(SourceConfig{Processes: p.group.Procs, Tracking: way})
				must(t, w.Begin())
				p.progress()
				first, err := w.Written()
				must(t, err)
				awaitMore(t, w, first, c.kind)
				must(t, w.Begin())
				must(t, w.Close())
				if got := first.Bytes / (1 << 20); got > c.most {
					t.Errorf("%.1f MiB were written, there are at most %.0f", got, c.most)
				}
				untouched(t, p)
				p.progress() // and its memory is right
			})
		}
	}
}

// awaitMore waits until a writing program is observed. A longer time never has fewer writes.
func awaitMore(t *testing.T, w *Watcher, before Written, kind string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		now, err := w.Written()
		must(t, err)
		if !strings.HasPrefix(kind, "write") || now.Bytes >= before.Bytes && now.Bytes >= 1<<20 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %+v after %+v", kind, now, before)
		}
	}
}

// untouched looks for traces of a watcher in a process.
func untouched(t *testing.T, p *program) {
	t.Helper()
	process, err := kernel.ReadProcess(p.pid())
	must(t, err)
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.pid()))
	must(t, err)
	if process.Tracer != 0 || strings.Contains(string(table), " uw ") {
		t.Errorf("something is left in process %d: tracer %d, or registered memory", p.pid(), process.Tracer)
	}
}

// TestContents recognises zeros, and compressible pages.
func TestContents(t *testing.T) {
	p := start(t, "wait", 8, 1)
	w := NewWatcher(SourceConfig{Processes: p.group.Procs})
	must(t, w.Begin())
	c, err := w.Contents()
	must(t, err)
	must(t, w.Close())
	if c.Pages == 0 || c.Zero < 0 || c.Zero > 1 || c.Duplicates > 1 || c.Ratio <= 0 || c.Ratio > 1 ||
		c.CompressBytesPerSecond <= 0 {
		t.Errorf("%+v", c)
	}
}
