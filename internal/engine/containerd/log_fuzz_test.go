package containerd

import (
	"bytes"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// FuzzLog checks that lastLines returns at most as many lines as requested, and starts at the beginning of
// a line.
func FuzzLog(f *testing.F) {
	f.Add([]byte("a\nb\nc"), 2)
	f.Add([]byte("\n\n"), 1)
	f.Add(bytes.Repeat([]byte("l"), pieceBytes+1), 1)
	f.Fuzz(func(t *testing.T, log []byte, count int) {
		if count < 0 {
			return
		}
		at, err := lastLines(bytes.NewReader(log), int64(len(log)), count)
		if err != nil || at < 0 || at > int64(len(log)) {
			t.Fatalf("the last %d lines of %d bytes begin at %d: %v", count, len(log), at, err)
		}
		if at > 0 && at < int64(len(log)) && log[at-1] != '\n' {
			t.Errorf("the last lines begin within one")
		}
		tail := log[at:]
		if lines := bytes.Count(bytes.TrimSuffix(tail, []byte("\n")), []byte("\n")) + 1; len(tail) > 0 &&
			lines > count {
			t.Errorf("%d lines, want %d at most", lines, count)
		}
		var shown []byte
		err = emitLines(t.Context(), bytes.NewReader(tail), func(e engine.LogEntry) error {
			shown = append(shown, e.Data...)
			return nil
		})
		if err != nil || !bytes.Equal(shown, tail) {
			t.Errorf("%d bytes are shown of %d: %v", len(shown), len(tail), err)
		}
	})
}
