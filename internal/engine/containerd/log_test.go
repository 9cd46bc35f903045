package containerd

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestShow checks that the last lines of a log are found wherever pieces end.
func TestShow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("l", pieceBytes-1)
	for _, log := range []string{"", "\n", "a", "a\n", "a\nb", "\n\na\n\n", long + "\n" + long + "\nb\n",
		long + long + long + "\nb", strings.Repeat(long[:70]+"\n", 5000)} {
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, tail := range []int{-1, 0, 1, 2, 3, 4999, 5000, 6000} {
			lines := strings.SplitAfter(strings.TrimSuffix(log, "\n"), "\n")
			if log != "" && strings.HasSuffix(log, "\n") {
				lines[len(lines)-1] += "\n"
			}
			if tail >= 0 && tail < len(lines) {
				lines = lines[len(lines)-tail:]
			}
			var shown strings.Builder
			err := (&adapter{}).show(t.Context(), "", path, engine.LogOptions{Tail: tail},
				func(e engine.LogEntry) error {
					if len(e.Data) > pieceBytes {
						t.Errorf("a piece of %d bytes", len(e.Data))
					}
					shown.Write(e.Data)
					return nil
				})
			if want := strings.Join(lines, ""); err != nil || shown.String() != want {
				t.Errorf("log of %d bytes, tail %d: %d bytes, want %d: %v", len(log), tail, shown.Len(),
					len(want), err)
			}
		}
	}
}

// TestShowMemory checks that little of a large log is in memory, even if the log is a single line.
func TestShowMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	const size = 64 << 20
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil { // one line
		t.Fatal(err)
	}
	for _, tail := range []int{-1, 1} {
		shown, most := 0, uint64(0)
		err := (&adapter{}).show(t.Context(), "", path, engine.LogOptions{Tail: tail},
			func(e engine.LogEntry) error {
				if shown += len(e.Data); shown%(8<<20) == 0 {
					runtime.GC() // how much garbage waits to be collected depends on the machine
					var now runtime.MemStats
					runtime.ReadMemStats(&now)
					most = max(most, now.HeapAlloc)
				}
				return nil
			})
		if err != nil || shown != size || most > size/4 {
			t.Errorf("tail %d: %d bytes, %d of memory: %v", tail, shown, most, err)
		}
	}
}
