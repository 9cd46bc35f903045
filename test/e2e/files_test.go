package e2e

import (
	"slices"
	"strings"
	"testing"
)

// manifest lists every property of the container's files that a move must keep.
func (c *container) manifest(paths ...string) []string {
	c.t.Helper()
	out := c.exec(append([]string{"/bin/state", "manifest"}, paths...)...)
	if out.code != 0 || strings.Count(out.stdout, "\n") < 100 {
		c.t.Fatalf("manifest: exit code %d: %.1000s%s", out.code, out.stdout, out.stderr)
	}
	lines := slices.Collect(strings.Lines(out.stdout))
	// A bound unix socket is bound anew at the target, so its times are new.
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "/run") })
}

// TestFilesSurvive has files of every kind in the writable layer, in a volume and in /dev/shm, and compares
// all their visible properties.
func TestFilesSurvive(t *testing.T) {
	t.Parallel()
	c := state(t, []string{"-v", "tree:/data"}, "files", "/srv", "/data/tree", "/dev/shm/tree")
	paths := []string{"/", "/data", "/dev/shm"}
	before := c.manifest(paths...)
	for range 2 {
		c.migrate()
		c.ok("check")
		after := c.manifest(paths...)
		told := 0
		for _, line := range before {
			if !slices.Contains(after, line) && told < 20 {
				t.Errorf("on %s, no longer there: %s", c.node, line)
				told++
			}
		}
		for _, line := range after {
			if !slices.Contains(before, line) && told < 40 {
				t.Errorf("on %s, new: %s", c.node, line)
				told++
			}
		}
	}
}

// TestVolumes moves a container with two volumes, one of them read-only, and checks both.
func TestVolumes(t *testing.T) {
	t.Parallel()
	first := run(t, []string{"-v", "fixed:/fixed"}, "/bin/sh", "-c",
		"echo kept >/fixed/file; echo ready; sleep 1000")
	must(t, "a", "rm", "--force", first.name) // the volume stays
	first.id, first.volumes = "", nil
	c := run(t, []string{"-v", "own:/own", "-v", "fixed:/fixed:ro"}, "/bin/sh", "-c",
		"echo own >/own/file; echo ready; while :; do sleep 0.05; done")
	for range 2 {
		c.migrate()
		if out := c.exec("/bin/cat", "/own/file", "/fixed/file"); out.stdout != "own\nkept\n" {
			t.Errorf("volumes on %s: %q %s", c.node, out.stdout, out.stderr)
		}
		if out := c.exec("/bin/touch", "/fixed/new"); out.code == 0 {
			t.Errorf("on %s the read-only volume can be written", c.node)
		}
		if out := c.exec("/bin/touch", "/own/new-on-"+c.node); out.code != 0 {
			t.Errorf("on %s the volume cannot be written: %s", c.node, out.stderr)
		}
	}
	if out := c.exec("/bin/ls", "/own"); out.stdout != "file\nnew-on-a\nnew-on-b\n" {
		t.Errorf("the volume after both moves: %q", out.stdout)
	}
}
