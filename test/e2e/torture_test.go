package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload/torture"
)

// TestTorture: several processes do everything possible to files, at full speed, in a volume that moves.
// When everything has arrived, and nothing runs anywhere, the volume is the same at both nodes, in every
// attribute and byte.
func TestTorture(t *testing.T) {
	if err := loadPages(); err != nil {
		t.Fatal(err)
	}
	config := torture.Config{Dir: "/data", Seed: 5, Processes: 2, Rate: 2000}
	command := append([]string{labimage.ProgramPath}, config.Args()...)
	c := runImage(t, pagesImage, []string{"-v", "tortured:/data"}, command...)
	const volume = "/var/lib/godwit/volumes/tortured"
	for range 3 {
		from, to := c.node, c.other()
		c.eventually("files", func() bool { return len(c.listed(from, volume)) > 100 })
		root, _, err := place(to)
		if err != nil {
			t.Fatal(err)
		}
		runDir := filepath.Join(root, "run/godwit")
		arrived := agent.Fault{Side: "target", Step: "restore", When: "before"}
		if err := arrived.Set(runDir, agent.FaultPause); err != nil {
			t.Fatal(err)
		}
		release := func() { _ = os.Remove(arrived.Reached(runDir)) } // it may be released already
		t.Cleanup(release)
		ended := make(chan output, 1)
		go func() {
			out, _ := godwit(context.Background(), from, "migrate", c.name, to, "--mode", preCopy, "--json")
			ended <- out
		}()
		c.eventually("all files at "+to, func() bool {
			_, err := os.Lstat(arrived.Reached(runDir))
			return err == nil || len(ended) > 0
		})
		c.same(c.listed(from, volume), c.listed(to, volume))
		release()
		out := <-ended
		var r report
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil {
			t.Fatalf("exit code %d: %s%s", out.code, out.stdout, out.stderr)
		}
		// CRIU cannot restore a deleted open file if its directory has gone, too; then the container
		// continues at the source.
		if r.Result == "rolled-back" && r.Error != nil && strings.Contains(*r.Error, "ghost") {
			c.gone(to)
			continue
		}
		if r.Result != "moved" {
			t.Fatalf("it was not moved: %s%s", out.stdout, out.stderr)
		}
		c.node = to
		c.gone(from)
	}
}

// listed returns all properties of the files in a directory of a node.
func (c *container) listed(node, directory string) []string {
	c.t.Helper()
	out, err := command(c.t.Context(), node, "", inWorld("state"), "manifest", directory)
	if err != nil || out.code != 0 {
		c.t.Fatalf("list %s on %s: %v, exit code %d: %s", directory, node, err, out.code, out.stderr)
	}
	return slices.Collect(strings.Lines(out.stdout))
}

// same checks that two lists of files are the same.
func (c *container) same(want, got []string) {
	c.t.Helper()
	told := 0
	for _, lists := range []struct {
		what      string
		all, want []string
	}{{"new or changed at the target", got, want}, {"not at the target", want, got}} {
		for _, line := range lists.all {
			if !slices.Contains(lists.want, line) && told < 40 {
				c.t.Errorf("%s: %s", lists.what, line)
				told++
			}
		}
	}
}
