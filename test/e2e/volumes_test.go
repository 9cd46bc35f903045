package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// at runs a command in a node and returns its output; it may fail.
func at(t *testing.T, node string, args ...string) output {
	t.Helper()
	out, err := command(t.Context(), node, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// moves runs a migration with flags and returns the results for volumes, by name.
func (c *container) moves(flags ...string) map[string]migration.VolumeMoved {
	c.t.Helper()
	args := append([]string{"migrate", c.name, c.other(), "--json", "--wait", "--mode", "cold"}, flags...)
	var report migration.Report
	if err := json.Unmarshal([]byte(must(c.t, c.node, args...)), &report); err != nil ||
		report.Result != migration.Moved {
		c.t.Fatalf("report: %v: %+v", err, report)
	}
	c.node = c.other()
	became := map[string]migration.VolumeMoved{}
	for _, v := range report.Volumes {
		became[v.Volume] = v
	}
	return became
}

// TestVolumeKinds moves a container with a volume of each kind there and back. Host directories below /tmp
// belong to each node in the lab.
func TestVolumeKinds(t *testing.T) {
	t.Parallel()
	for _, node := range nodes() {
		at(t, node, "/bin/mkdir", "-p", "/tmp/kinds-read")
		at(t, node, "/bin/rmdir", "/tmp/kinds-read")
	}
	at(t, "a", "/bin/mkdir", "-p", "/tmp/kinds/deep", "/tmp/kinds-read")
	at(t, "a", "/bin/sh", "-c", "echo fixed >/tmp/kinds-read/file")
	c := run(t, []string{"-v", "kinds:/own", "-v", "/tmp/kinds/deep:/host", "-v", "/tmp/kinds-read:/read:ro",
		"--tmpfs", "/fast:size=3m"},
		"/bin/sh", "-c", "for d in own host fast; do echo $d >/$d/file; done; exec 3<>/fast/file "+
			"4</host/file; echo ready; while :; do sleep 0.05; done")
	look := []string{"/bin/cat", "/own/file", "/host/file", "/read/file", "/fast/file", "/proc/1/fd/3",
		"/proc/1/fd/4"}
	for _, mode := range []string{cold, preCopy} {
		became := c.moves("--mode", mode)
		for key, kind := range map[string]string{"kinds": "named", "/host": "bind", "/read": "bind",
			"/fast": "tmpfs"} {
			if v := became[key]; v.Way != migration.VolumeMove || v.Kind != kind || v.Bytes == 0 ||
				v.Files == 0 {
				t.Errorf("volume %s: %+v", key, v)
			}
		}
		if out := c.exec(look...); out.stdout != "own\nhost\nfixed\nfast\nfast\nhost\n" {
			t.Errorf("on %s: %q %s", c.node, out.stdout, out.stderr)
		}
		if out := c.exec("/bin/touch", "/read/new"); out.code == 0 {
			t.Errorf("on %s the read-only directory can be written", c.node)
		}
		if out := c.exec("/bin/sh", "-c",
			"df -k /fast | tail -1 | awk '{print $2}'"); out.stdout != "3072\n" {
			t.Errorf("size of the tmpfs on %s: %q", c.node, out.stdout)
		}
		if out := at(t, c.other(), "/bin/ls", "/tmp/kinds"); strings.Contains(out.stdout, "deep") {
			t.Errorf("the host directory is left on %s: %s", c.other(), out.stdout)
		}
		if out := at(t, c.other(), "/bin/cat", "/tmp/kinds-read/file"); out.stdout != "fixed\n" {
			t.Errorf("the host directory that the container could only read has gone from %s: %s", c.other(),
				out.stderr)
		}
		at(t, c.other(), "/bin/rm", "-r", "/tmp/kinds-read") // otherwise it could not come back
	}
	must(t, c.node, "rm", "--force", c.name)
	c.id = ""
	at(t, c.node, "/bin/rm", "-r", "/tmp/kinds", "/tmp/kinds-read")
	must(t, c.node, "volume", "rm", "kinds")
	c.volumes = nil
}

// TestVolumesInTheWay: a move of volumes onto existing content is refused, and the user's remedies work.
func TestVolumesInTheWay(t *testing.T) {
	t.Parallel()
	for _, node := range nodes() {
		at(t, node, "/bin/mkdir", "-p", "/tmp/way")
		at(t, node, "/bin/sh", "-c", "echo "+node+" >/tmp/way/file")
	}
	must(t, "b", "run", "--name", "way-maker", "-v", "way:/way", image, "/bin/sh", "-c", "echo b >/way/file")
	must(t, "b", "rm", "way-maker")
	c := run(t, []string{"-v", "way:/way", "-v", "/tmp/way:/host"}, "/bin/sh", "-c",
		"echo a >/way/file; echo ready; while :; do sleep 0.05; done")
	c.refused("volume way", "files in it", "--volumes way=skip", "host directory /tmp/way",
		"--volumes /host=skip")
	for _, bad := range [][]string{{"way=copy", "move, shared, skip"},
		{"none=move", "has no volume", "way, /host"}, {"way=move,way=skip", "already has a way"}} {
		out, err := godwit(t.Context(), "a", "migrate", c.name, "b", "--volumes", bad[0])
		for _, word := range bad[1:] {
			if err != nil || out.code == 0 || !strings.Contains(out.stderr, word) {
				t.Errorf("--volumes %s: %v, exit code %d: %s", bad[0], err, out.code, out.stderr)
			}
		}
	}
	out, err := godwit(t.Context(), "a", "migrate", c.name, "b", "--volumes", "shared")
	if err != nil || out.code != 1 || !strings.Contains(out.stdout, "could not be proven") {
		t.Errorf("shared without proof: %v, exit code %d: %s%s", err, out.code, out.stdout, out.stderr)
	}
	if out := at(t, "a", "/bin/ls", "-A", "/tmp/way"); out.stdout != "file\n" {
		t.Errorf("a token is left: %s", out.stdout)
	}
	became := c.moves("--volumes", "skip")
	if out := c.exec("/bin/cat", "/way/file", "/host/file"); out.stdout != "b\nb\n" ||
		became["way"].Way != migration.VolumeSkip {
		t.Errorf("what it has at the target: %q, %+v", out.stdout, became)
	}
	if out := at(t, "a", "/bin/cat", "/tmp/way/file",
		"/var/lib/godwit/volumes/way/file"); out.stdout != "a\na\n" {
		t.Errorf("what was skipped has changed at the source: %q %s", out.stdout, out.stderr)
	}
	must(t, "a", "volume", "rm", "way")
	for _, node := range nodes() {
		at(t, node, "/bin/rm", "-r", "/tmp/way")
	}
}

// TestVolumesNotToTake: a volume that others need at the source is not moved away.
func TestVolumesNotToTake(t *testing.T) {
	t.Parallel()
	other := run(t, []string{"-v", "taken:/x"}, "/bin/sh", "-c", "echo ready; sleep 1000")
	t.Run("by another", func(t *testing.T) {
		c := run(t, []string{"-v", "taken:/x", "-v", "/run:/share:ro"}, "/bin/sh", "-c",
			"echo ready; sleep 1000")
		c.refused("volume taken", "container "+other.name, "cannot be moved together yet",
			"host directory /run", "belongs to this machine", "--volumes /share=skip")
		if out, err := godwit(t.Context(), "a", "volume", "rm", "taken"); err != nil || out.code != 1 ||
			!strings.Contains(out.stderr, other.name) {
			t.Errorf("volume rm: %v, %d: %s", err, out.code, out.stderr)
		}
		c.volumes = nil // it is the other's, too
	})
	if out := must(t, "a", "volume", "ls"); !strings.Contains(out, "taken") ||
		!strings.Contains(out, other.name) {
		t.Errorf("volume ls: %s", out)
	}
	if out := must(t, "a", "volume", "inspect", "taken"); !strings.Contains(out, `"bytes": 0`) {
		t.Errorf("volume inspect: %s", out)
	}
}

// TestVolumesInRestart starts a container's processes anew: the contents of volumes and of shared storage
// are there, and the contents of memory are lost.
func TestVolumesInRestart(t *testing.T) {
	t.Parallel()
	storage, err := os.MkdirTemp(labtest.Directory, "godwit-e2e-restart-") // both nodes have it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(storage) })
	c := run(t, []string{"-v", "again:/own", "-v", storage + ":/shared", "--tmpfs", "/fast"}, "/bin/sh", "-c",
		"trap 'exit 0' TERM; for d in own shared fast; do echo started >>/$d/log; done; echo ready; while "+
			":; do sleep 0.05; done")
	for range 2 {
		became := c.moves("--mode", restart)
		if became["again"].Way != migration.VolumeMove || became["/shared"].Way != migration.VolumeShared ||
			became["/fast"].Way != migration.VolumeSkip {
			t.Errorf("what became of them: %+v", became)
		}
	}
	for path, starts := range map[string]int{"/own/log": 3, "/shared/log": 3, "/fast/log": 1} {
		if out := c.exec("/bin/cat", path); strings.Count(out.stdout, "started\n") != starts {
			t.Errorf("%s after two restarts: %q %s", path, out.stdout, out.stderr)
		}
	}
}
