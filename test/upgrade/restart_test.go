package upgrade

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestRestartPolicyBesidePrevious ends a container with restart policy always while the other node runs the
// previous release, which cannot report whether it has a container. The container waits, and ps says for
// what. A user who knows better starts it.
func TestRestartPolicyBesidePrevious(t *testing.T) {
	c := &cluster{}
	c.use(t, "a", present)
	c.use(t, "b", previous)
	const name = "again"
	must(t, "a", "run", "-d", "--name", name, "--restart", "always", image)
	t.Cleanup(func() { _, _ = godwit(t, "a", "rm", "--force", name) })
	was := named(t, "a", name)
	if err := world.lab.KillAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if out, err := world.lab.Exec(t.Context(), "a", "kill", "-KILL", strconv.Itoa(was.PID)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	recordsEnd(t, "a", was.Definition.ID)
	c.replace(t, "a", present)
	eventually(t, "ps to say that b cannot tell", func() error {
		one := named(t, "a", name)
		if one.State != engine.Exited {
			t.Fatalf("it is %s", one.State)
		}
		if !strings.Contains(one.NotRunning, "node b cannot say") ||
			!strings.Contains(one.NotRunning, "start --force "+name) {
			return fmt.Errorf("it says %q", one.NotRunning)
		}
		return nil
	})
	if out, err := godwit(t, "a", "start", name); err == nil ||
		!strings.Contains(err.Error()+out, "upgrade it") {
		t.Errorf("start: %v: %s", err, out)
	}
	must(t, "a", "start", "--force", name)
	if one := named(t, "a", name); one.State != engine.Running {
		t.Errorf("it is %s", one.State)
	}
}

// recordsEnd waits until a container's monitor has recorded its end: an agent that looked earlier would see
// the container run.
func recordsEnd(t *testing.T, node, id string) {
	t.Helper()
	root, err := world.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end to be recorded", func() error {
		data, err := os.ReadFile(filepath.Join(root, "var/lib/godwit/containers", id, "record.json"))
		if err != nil {
			return err
		}
		var record struct {
			State engine.State `json:"state"`
		}
		if err := json.Unmarshal(data, &record); err != nil {
			return err
		}
		if record.State != engine.Exited {
			return fmt.Errorf("it is %s", record.State)
		}
		return nil
	})
}

// TestStaleDeparture: this tree begins a migration that the previous release undoes, and the previous
// release completes another one. When this tree is back, and the journal is lost, the durable note
// describes the undone migration, and the container runs at the target only.
func TestStaleDeparture(t *testing.T) {
	c := &cluster{}
	c.use(t, "a", present)
	c.use(t, "b", previous)
	one := start(t, "count")
	one.goesOn(t)
	first := c.killAt(t, one, agent.Fault{Side: "source", Step: "dump", When: "before"})
	c.replace(t, "a", previous)
	eventually(t, "the previous release to undo it", func() error {
		if r := report(t, "a", first); r.Result != migration.RolledBack {
			return fmt.Errorf("it is %s", r.Result)
		}
		return nil
	})
	one.goesOn(t)
	second := c.killAt(t, one, agent.Fault{Side: "source", Step: "send", When: "after"})
	root, err := world.lab.Root("a")
	if err == nil {
		err = os.RemoveAll(filepath.Join(root, "var/lib/godwit/migrations", second))
	}
	if err != nil {
		t.Fatal(err)
	}
	c.replace(t, "a", present)
	one.at = "b"
	one.goesOn(t)
	if r := report(t, "a", second); r.Result != migration.Moved {
		t.Errorf("the migration is %s", r.Result)
	}
}

// killAt kills the agent of node a at a step of a migration to b.
func (c *cluster) killAt(t *testing.T, one *container, fault agent.Fault) (id string) {
	t.Helper()
	root, err := world.lab.Root("a")
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(root, "run/godwit")
	if err := fault.Set(run, agent.FaultPause); err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(must(t, "a", "migrate", "--detach", "--mode", "cold", one.reference, "b"))
	eventually(t, "the step to be reached", func() error {
		_, err := os.Stat(fault.Reached(run))
		return err
	})
	if err := world.lab.KillAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := fault.Clear(run); err != nil {
		t.Fatal(err)
	}
	return id
}

// named finds a container of a node.
func named(t *testing.T, node, name string) engine.Container {
	t.Helper()
	var all []engine.Container
	if err := json.Unmarshal([]byte(must(t, node, "ps", "--all", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Definition.Name == name {
			return one
		}
	}
	t.Fatalf("%s has no container %s", node, name)
	return engine.Container{}
}
