package upgrade

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// patience is how long a condition may take to come true on a machine that is busy with other things.
const patience = 2 * time.Minute

// stages are the programs of the nodes, one stage after the other: an upgrade node by node, and its
// rollback.
var stages = []struct {
	name    string
	a, b    version
	changed string // the node with a new program; empty: both
}{
	{"before", previous, previous, ""},
	{"a upgraded", present, previous, "a"},
	{"b upgraded", present, present, "b"},
	{"a rolled back", previous, present, "a"},
	{"b rolled back", previous, previous, "b"},
}

// cluster is two nodes with containers that move between them.
type cluster struct {
	containers []*container
	failed     []string // unexpected failures
}

// TestRollingUpgrade moves containers back and forth at every stage of an upgrade and of its rollback,
// while a client uses one of them all the time. Whenever a node's program changes, a migration is under
// way, which the other program continues. UPGRADE_MOVES (default 20) is the number of moves without those.
func TestRollingUpgrade(t *testing.T) {
	moves := 20
	if text := os.Getenv("UPGRADE_MOVES"); text != "" {
		var err error
		if moves, err = strconv.Atoi(text); err != nil {
			t.Fatalf("UPGRADE_MOVES: %v", err)
		}
	}
	c := &cluster{}
	began := time.Now()
	for _, node := range labtest.Nodes() {
		c.use(t, node, previous)
	}
	c.containers = []*container{start(t, "count"), start(t, "docker:docked"), startRedis(t)}
	moved := 0
	for _, stage := range stages {
		t.Logf("%s: a runs %s, b %s", stage.name, stage.a, stage.b)
		if stage.changed != "" {
			changed := map[string]version{"a": stage.a, "b": stage.b}[stage.changed]
			c.change(t, stage.changed, changed)
		}
		for range moves / len(stages) {
			c.move(t, c.containers[moved%len(c.containers)], modes[moved/len(c.containers)%len(modes)])
			moved++
		}
	}
	for _, one := range c.containers {
		one.ends(t)
	}
	if len(c.failed) > 0 {
		t.Errorf("%d of %d moves failed:\n%s", len(c.failed), moved, strings.Join(c.failed, "\n"))
	}
	c.writeResult(t, moved, time.Since(began))
}

var modes = []migration.Mode{migration.PreCopy, migration.Cold, migration.Hybrid, migration.PostCopy}

// use changes a node's program.
func (c *cluster) use(t *testing.T, node string, v version) {
	t.Helper()
	if err := world.lab.StopAgent(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	c.replace(t, node, v)
}

// replace mounts a program in place of that of a node without an agent, and starts it.
func (c *cluster) replace(t *testing.T, node string, v version) {
	t.Helper()
	where, err := world.lab.Exec(t.Context(), node, "sh", "-c", "command -v godwit")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := world.lab.Exec(t.Context(), node, "mount", "--bind", world.programs[v],
		strings.TrimSpace(where)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := world.lab.StartAgent(t.Context(), node, "--faults"); err != nil {
		t.Fatal(err)
	}
}

// change replaces a node's program while a migration waits there, with the agent killed: the other program
// reads its journal. On the source the migration waits in doubt, on the target before it restores.
func (c *cluster) change(t *testing.T, node string, v version) {
	t.Helper()
	one := c.containers[0]
	fault := agent.Fault{Side: "source", Step: "send", When: "after"}
	if node != one.at {
		fault = agent.Fault{Side: "target", Step: "restore", When: "before"}
	}
	root, err := world.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(root, "run/godwit")
	if err := fault.Set(run, agent.FaultPause); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(must(t, one.at, "migrate", "--detach", "--mode", "pre-copy", one.reference,
		other(one.at)))
	eventually(t, "the step to be reached", func() error {
		_, err := os.Stat(fault.Reached(run))
		return err
	})
	if err := world.lab.KillAgent(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := fault.Clear(run); err != nil {
		t.Fatal(err)
	}
	c.replace(t, node, v)
	from := one.at
	eventually(t, "the migration to end", func() error {
		for _, node := range labtest.Nodes() {
			if r := report(t, node, id); r.Result == migration.ResultRuns ||
				r.Result == migration.ResultDoubt {
				return fmt.Errorf("on %s it is %s", node, r.Result)
			}
		}
		return nil
	})
	if report(t, from, id).Result == migration.Moved {
		one.at = other(from)
	}
	for _, one := range c.containers {
		one.goesOn(t)
	}
}

// move moves a container to the other node.
func (c *cluster) move(t *testing.T, one *container, mode migration.Mode) {
	t.Helper()
	to := other(one.at)
	if _, err := godwit(t, one.at, "migrate", "--wait", "--mode", string(mode), one.reference,
		to); err != nil {
		c.failed = append(c.failed, fmt.Sprintf("%s, %s to %s, %s: %v", one.reference, one.at, to, mode, err))
	} else {
		one.at = to
	}
	one.goesOn(t)
}

// report returns a node's report of a migration; an unknown migration has ended.
func report(t *testing.T, node, id string) migration.Report {
	t.Helper()
	var list []migration.Report
	if err := json.Unmarshal([]byte(must(t, node, "migration", "ls", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.Migration == id {
			return r
		}
	}
	return migration.Report{Result: migration.RolledBack}
}

func godwit(t *testing.T, node string, args ...string) (string, error) {
	t.Helper()
	return world.lab.Exec(t.Context(), node, append([]string{"godwit"}, args...)...)
}

func must(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := godwit(t, node, args...)
	if err != nil {
		t.Fatalf("%s: godwit %s: %v", node, strings.Join(args, " "), err)
	}
	return out
}

// writeResult writes the figures of a run to the file UPGRADE_JSON.
func (c *cluster) writeResult(t *testing.T, moves int, took time.Duration) {
	t.Helper()
	path := os.Getenv("UPGRADE_JSON")
	if path == "" {
		return
	}
	result, err := json.Marshal(map[string]any{
		"moves": moves, "failed": len(c.failed), "takeovers": len(stages) - 1, "seconds": took.Seconds(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(result, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func other(node string) string {
	if node == "a" {
		return "b"
	}
	return "a"
}

func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	var err error
	if !labtest.Within(patience, func() bool { err = condition(); return err == nil }) {
		t.Fatalf("waited too long for %s: %v", what, err)
	}
}
