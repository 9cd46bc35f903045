package upgrade

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// patience is how long a condition may take to come true on a machine that is busy with other things.
const patience = 2 * time.Minute

const container = "count"

// stages are what the nodes run, one after the other: an upgrade node by node, and its rollback.
var stages = []struct {
	name    string
	a, b    version
	changed string // the node whose program has changed; empty: both
}{
	{"before", previous, previous, ""},
	{"a upgraded", present, previous, "a"},
	{"b upgraded", present, present, "b"},
	{"a rolled back", previous, present, "a"},
	{"b rolled back", previous, previous, "b"},
}

// cluster is two nodes with one container that counts.
type cluster struct {
	at    string // the node where the container runs
	moved int
	next  int // the next number that the container must print
}

// TestRollingUpgrade moves a container to and fro at every stage of an upgrade and of its rollback. At
// each change of a node's program a migration is under way, which the other program carries on.
// UPGRADE_MOVES (default 20) is how many moves there are without those.
func TestRollingUpgrade(t *testing.T) {
	moves := 20
	if text := os.Getenv("UPGRADE_MOVES"); text != "" {
		var err error
		if moves, err = strconv.Atoi(text); err != nil {
			t.Fatalf("UPGRADE_MOVES: %v", err)
		}
	}
	c := &cluster{at: "a"}
	began := time.Now()
	for _, node := range labtest.Nodes() {
		c.use(t, node, previous)
	}
	c.godwit(t, "a", "run", "-d", "--name", container, image)
	t.Cleanup(remove)
	modes := []migration.Mode{migration.PreCopy, migration.Cold, migration.Hybrid, migration.PostCopy}
	for _, stage := range stages {
		t.Logf("%s: a runs %s, b %s", stage.name, stage.a, stage.b)
		if stage.changed != "" {
			changed := map[string]version{"a": stage.a, "b": stage.b}[stage.changed]
			c.change(t, stage.changed, changed)
		}
		for range moves / len(stages) {
			mode := modes[c.moved%len(modes)]
			c.move(t, mode)
		}
	}
	c.counts(t)
	writeResult(t, c.moved, time.Since(began))
}

// use has a node run a program from now on.
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
	if out, err := world.lab.Exec(t.Context(), node, "mount", "--bind", world.programs[v], strings.TrimSpace(where)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := world.lab.StartAgent(t.Context(), node, "--faults"); err != nil {
		t.Fatal(err)
	}
}

// change replaces a node's program while a migration waits there, with the agent killed: the other
// program reads its journal. On the node that the container leaves it waits when it is in doubt, on the
// other one before it restores.
func (c *cluster) change(t *testing.T, node string, v version) {
	t.Helper()
	fault := agent.Fault{Side: "source", Step: "send", When: "after"}
	if node != c.at {
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
	id := strings.TrimSpace(c.godwit(t, c.at, "migrate", "--detach", "--mode", "pre-copy", container, other(c.at)))
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
	from := c.at
	eventually(t, "the migration to end", func() error {
		for _, one := range labtest.Nodes() {
			if r := c.report(t, one, id); r.Result == migration.ResultRuns || r.Result == migration.ResultDoubt {
				return fmt.Errorf("on %s it is %s", one, r.Result)
			}
		}
		return nil
	})
	if c.report(t, from, id).Result == migration.Moved {
		c.at = other(from)
	}
	c.counts(t)
}

// move moves the container to the other node.
func (c *cluster) move(t *testing.T, mode migration.Mode) {
	t.Helper()
	c.godwit(t, c.at, "migrate", "--wait", "--mode", string(mode), container, other(c.at))
	c.at = other(c.at)
	c.moved++
	c.counts(t)
}

// counts checks that the container runs at one node only, goes on, and has missed no number.
func (c *cluster) counts(t *testing.T) {
	t.Helper()
	from := c.next
	eventually(t, "the container to count", func() error {
		said := strings.Fields(c.godwit(t, c.at, "logs", container))
		for i, number := range said {
			if number != strconv.Itoa(i) {
				t.Fatalf("line %d of its log is %q", i, number)
			}
		}
		if c.next = len(said); c.next <= from {
			return fmt.Errorf("it is at %d", c.next)
		}
		return nil
	})
	eventually(t, "the other node to be free of it", func() error {
		if there := c.containers(t, other(c.at)); len(there) != 0 {
			return fmt.Errorf("%s has %v", other(c.at), there)
		}
		return nil
	})
}

func (c *cluster) containers(t *testing.T, node string) []engine.Container {
	t.Helper()
	var list []engine.Container
	if err := json.Unmarshal([]byte(c.godwit(t, node, "ps", "--all", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// report is what a node says of a migration; one that it does not know has ended.
func (c *cluster) report(t *testing.T, node, id string) migration.Report {
	t.Helper()
	var list []migration.Report
	if err := json.Unmarshal([]byte(c.godwit(t, node, "migration", "ls", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.Migration == id {
			return r
		}
	}
	return migration.Report{Result: migration.RolledBack}
}

func (c *cluster) godwit(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := world.lab.Exec(t.Context(), node, append([]string{"godwit"}, args...)...)
	if err != nil {
		t.Fatalf("%s: godwit %s: %v", node, strings.Join(args, " "), err)
	}
	return out
}

// remove removes the container, wherever it is.
func remove() {
	for _, node := range labtest.Nodes() {
		cmd, err := world.lab.Command(context.Background(), node, "godwit", "rm", "--force", container)
		if err == nil {
			_ = cmd.Run() // at one of them it is not
		}
	}
}

// writeResult leaves the figures of a run with UPGRADE_JSON in that file.
func writeResult(t *testing.T, moves int, took time.Duration) {
	t.Helper()
	path := os.Getenv("UPGRADE_JSON")
	if path == "" {
		return
	}
	result, err := json.Marshal(map[string]any{"moves": moves, "failed": 0, "takeovers": len(stages) - 1, "seconds": took.Seconds()})
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
