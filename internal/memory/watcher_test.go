package memory

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// TestWatch looks at what programs write, in each way that there is, and that they go on as if
// nothing had been.
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
				p.progress() // and nothing of its memory is wrong
			})
		}
	}
}

// awaitMore waits until a program that writes is seen to do so. What is written in a time is never
// less in a longer one.
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

// untouched looks for what a watcher may have left in a process.
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

// TestContents knows zeros, and what can be compressed.
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
