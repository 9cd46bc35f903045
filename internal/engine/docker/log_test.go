package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/godwit/godwit/internal/engine/oci"
)

// TestLogBytes checks that leading blanks of a log do not count, and that a container with a log that is
// too large for every target can still move.
func TestLogBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	found := oci.Container{Native: container.InspectResponse{
		LogPath: path, HostConfig: &container.HostConfig{LogConfig: container.LogConfig{Type: logDriver}},
	}}
	for _, c := range []struct{ size, want int64 }{{5, 2}, {maxLog + 3, maxLog}, {maxLog + 4, maxLog}} {
		must(t, os.WriteFile(path, []byte(strings.Repeat(" ", 3)+"x"), 0o600))
		must(t, os.Truncate(path, c.size))
		if got, err := (&adapter{}).logBytes(t.Context(), found); err != nil || got != c.want {
			t.Errorf("of %d bytes: %d, %v, want %d", c.size, got, err, c.want)
		}
	}
}
