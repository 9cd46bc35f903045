package embedded

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestMoveWatches checks that inotify watches in the image, the writable layer, a volume and /dev/shm
// continue.
func TestMoveWatches(t *testing.T) {
	t.Parallel()
	a, b := newTestNode(t), newTestNode(t)
	for _, n := range []*testNode{a, b} {
		build := exec.Command("go", "build", "-o", n.config.Images.(testImages).dir+"/bin/watcher",
			"testdata/watcher/main.go")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	d := definition(t, "sh", "-c", "mkdir /tmp/w; exec watcher /etc /tmp/w /data /dev/shm")
	d.Volumes = []engine.Volume{{Name: "data", Path: "/data"}}
	a.start(d)
	waitFor(t, "the watches", func() bool { return strings.Contains(a.output(d.ID), "ready") })
	for _, trip := range []string{"there", "back"} {
		move(t, a, b, d.ID)
		a, b = b, a
		for _, dir := range []string{"/etc", "/tmp/w", "/data", "/dev/shm"} {
			name := trip + strings.ReplaceAll(dir, "/", "-")
			if code, err := a.Exec(t.Context(), d.ID,
				engine.Exec{Args: []string{"touch", dir + "/" + name}}); err != nil || code != 0 {
				t.Fatal(code, err)
			}
			waitFor(t, "the event of "+name,
				func() bool { return strings.Contains(a.output(d.ID), "made "+name+"\n") })
		}
	}
}
