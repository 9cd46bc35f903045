package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// placements lists a node's copies at nodes to which the container may move.
func (c *container) placements(node string) (copies []migration.Stage) {
	c.t.Helper()
	var all []migration.Stage
	if err := json.Unmarshal([]byte(must(c.t, node, "stage", "ls", "--json")), &all); err != nil {
		c.t.Fatal(err)
	}
	for _, s := range all {
		if s.ContainerID == c.id && s.Placement != nil {
			copies = append(copies, s)
		}
	}
	return copies
}

// copyIs waits until there is a copy at a node, live or idle.
func (c *container) copyIs(target string, state migration.StageState) {
	c.t.Helper()
	c.eventually("a copy at "+target, func() bool {
		for _, s := range c.placements(c.node) {
			if s.Target == target && s.State == state && s.MemoryBytes >= writerBytes {
				return true
			}
		}
		return false
	})
}

// noCopies waits until no node keeps or makes a copy of the container.
func (c *container) noCopies() {
	c.t.Helper()
	for _, node := range nodes() {
		c.eventually("no copy at "+node, func() bool {
			for _, s := range c.stages(node) {
				if s.State != "ended" {
					return false
				}
			}
			return true
		})
	}
}

// TestStagePath: copies are made in time, a migration starts from them, and the rest of the path moves with
// the container.
func TestStagePath(t *testing.T) {
	c := writer(t)
	var told []migration.Stage
	if err := json.Unmarshal([]byte(must(t, "a", "stage", c.name, "--path", "a@20m,b@4s", "--json")),
		&told); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || told[0].Target != "b" || told[0].Placement.NeedSeconds <= 0 ||
		told[1].Placement.Why != migration.PlacementPath {
		t.Errorf("told beforehand: %+v", told)
	}
	c.copyIs("b", migration.StageReady)
	p := c.precopy()
	if raw, _ := p.bytes(); raw > writerBytes/4 ||
		!strings.Contains(strings.Join(p.Decisions, "\n"), "staged at b") {
		t.Errorf("%d bytes of memory were sent although %d were there; decisions: %q", raw, writerBytes,
			p.Decisions)
	}
	c.eventually("the rest of the path at b",
		func() bool { return len(c.placements("b")) == 1 && len(c.placements("a")) == 0 })
	if s := c.placements("b")[0]; s.Target != "a" || s.State != migration.StageIdle ||
		s.MemoryBytes < writerBytes {
		t.Errorf("what it left at a: %+v", s)
	}
	if _, sent := c.precopyBytes(); sent > writerBytes/4 {
		t.Errorf("%d bytes were sent although most was there", sent)
	}
	c.noCopies()
	c.right()
}

// precopyBytes moves the container, and returns its memory's size and the bytes sent for it.
func (c *container) precopyBytes() (raw, sent int64) {
	c.t.Helper()
	p := c.precopy()
	return p.bytes()
}

// TestStageNearest: the nearest neighbour has a copy, wherever the container is, until the user turns that
// off.
func TestStageNearest(t *testing.T) {
	c := writer(t)
	must(t, "a", "stage", c.name, "--nearest", "1", "--budget", "1GiB")
	c.copyIs("b", migration.StageReady)
	if at := c.stages("b"); len(at) != 1 || at[0].MemoryBytes < writerBytes || at[0].Source != "a" {
		t.Errorf("at b: %+v", at)
	}
	if out, err := godwit(t.Context(), "a", "stage", c.name, "b"); err != nil || out.code == 0 ||
		!strings.Contains(out.stderr, "stage rm") {
		t.Errorf("staged by hand beside it: %v: %s", err, out.stderr)
	}
	if raw, _ := c.precopyBytes(); raw > writerBytes/4 {
		t.Errorf("%d bytes of memory were sent although %d were there", raw, writerBytes)
	}
	c.copyIs("a", migration.StageIdle)
	must(t, "b", "stage", "rm", c.name)
	c.noCopies()
	// it is watched a few seconds longer
	c.eventually("the end of the tracking", func() bool { return !c.tracked() })
	c.right()
}

// TestStageIdle: a copy that loses its turn stays on its node, and is removed when the container ends.
func TestStageIdle(t *testing.T) {
	c := writer(t)
	must(t, "a", "stage", c.name, "--nearest", "1")
	c.copyIs("b", migration.StageReady)
	c.migrateBy(cold) // which does not use the copy, and removes it
	c.eventually("the policy at b", func() bool { return len(c.placements("b")) > 0 })
	c.copyIs("a", migration.StageIdle)
	must(t, "b", "rm", "--force", c.name)
	c.noCopies()
	c.id = ""
}

// TestPlacementRefused: invalid requests are refused with the reason.
func TestPlacementRefused(t *testing.T) {
	c := writer(t)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"stage", c.name, "--path", "z@10s"}, 1, "no such node"},
		{[]string{"stage", c.name, "--path", "a@10s"}, 1, "already on a"},
		{[]string{"stage", c.name, "--path", "b@-10s"}, 2, "deadline of b is past"},
		{[]string{"stage", c.name, "--path", "b"}, 2, "NODE@TIME"},
		{[]string{"stage", c.name, "b", "--path", "b@10s"}, 2, "usage"},
		{[]string{"stage", c.name, "--nearest", "17"}, 2, "from 1 to 16"},
		{[]string{"stage", c.name, "--nearest", "1", "--budget", "1MiB"}, 1, "is too small"},
		{[]string{"stage", c.name, "--budget", "1GiB"}, 2, "--budget needs --nearest"},
		{[]string{"stage", "nothing", "--nearest", "1"}, 1, "no such container"},
		{[]string{"stage", c.name, "--off"}, 1, "has no placement policy"},
		{[]string{"stage", "rm", c.name}, 1, "has no placement policy"},
	} {
		out, err := godwit(t.Context(), "a", test.args...)
		if err != nil || out.code != test.code || !strings.Contains(out.stderr, test.want) {
			t.Errorf("%v: %v, exit code %d: %s", test.args, err, out.code, out.stderr)
		}
	}
}
