package memory

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestHugePages has huge pages before and after, and some that are never written.
func TestHugePages(t *testing.T) {
	for _, c := range []struct {
		kind  string
		stays bool
	}{{"block-huge", true}, {"write-huge", false}} {
		p := start(t, c.kind, 32, 2)
		before := hugeKibibytes(t, p.pid())
		if before < 16<<10 {
			t.Fatalf("%s: only %d KiB in huge pages: is transparent_hugepage set to never?", c.kind, before)
		}
		s := NewSource(SourceConfig{Processes: p.group.Procs, Tracking: WriteProtect})
		target := newCopied(t)
		for range 3 {
			if stats := target.round(s, false); len(stats.Refused) > 0 {
				t.Fatalf("%s: %+v", c.kind, stats.Refused)
			}
			p.check()
		}
		under := hugeKibibytes(t, p.pid())
		if c.stays && under < before {
			t.Errorf("%s: %d of %d KiB in huge pages while it is tracked", c.kind, under, before)
		}
		must(t, s.Close())
		after := hugeKibibytes(t, p.pid())
		if after < before/2 { // there may be fewer free ones than before
			t.Errorf("%s: %d KiB in huge pages before, %d while it was tracked, %d after", c.kind, before,
				under, after)
		}
		t.Logf("%s: %d KiB in huge pages before, %d while it was tracked, %d after", c.kind, before, under,
			after)
		p.end()
	}
}

func hugeKibibytes(t *testing.T, pid int) int {
	t.Helper()
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	must(t, err)
	n := -1
	for line := range strings.Lines(string(all)) {
		if value, ok := strings.CutPrefix(line, "AnonHugePages:"); ok {
			_, err := fmt.Sscan(value, &n)
			must(t, err)
		}
	}
	return n
}
