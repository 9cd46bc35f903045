package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

// TestBootMoving simulates a power failure in the middle of a migration of a container with policy always.
// The container runs again, at the node that has it according to the journals, and nowhere else.
func TestBootMoving(t *testing.T) {
	t.Parallel()
	w := newNodes(t, lab.Config{})
	w.policy = "always"
	w.loadRedis(t, "a")
	all := []rebooted{
		{agent.Fault{Side: "source", Step: "dump", When: "before"}, "source", "source", engine.Running,
			migration.RolledBack},
		{beforeRestore, "source", "target", engine.Running, migration.Moved},
		{agent.Fault{Side: "target", Step: "restore", When: "after"}, "target", "target", engine.Running,
			migration.Moved},
	}
	if !testing.Short() {
		all = append(all, []rebooted{
			{agent.Fault{Side: "source", Step: "stage", When: "before"}, "source", "source", engine.Running,
				migration.RolledBack},
			{agent.Fault{Side: "target", Step: "arrive", When: "after"}, "target", "source", engine.Running,
				migration.RolledBack},
			{beforeRestore, "target", "source", engine.Running, migration.RolledBack},
			{agent.Fault{Side: "source", Step: "destroy", When: "before"}, "source", "target", engine.Running,
				migration.Moved},
		}...)
	}
	w.rebootEach(t, all)
	if !testing.Short() {
		w.mode = migration.Restart
		w.rebootEach(t, []rebooted{
			{agent.Fault{Side: "source", Step: "stop", When: "before"}, "source", "source", engine.Running,
				migration.RolledBack},
			{agent.Fault{Side: "target", Step: "start", When: "after"}, "target", "target", engine.Running,
				migration.Moved},
		})
		w.mode = migration.Cold
	}
	t.Run("in doubt", func(t *testing.T) { w.bootInDoubt(t, func(string) {}) })
	t.Run("in doubt, journal lost",
		func(t *testing.T) { w.bootInDoubt(t, func(id string) { w.forget(t, "a", id) }) })
}

// bootInDoubt boots the source while it is not known where the container runs, after a change to its disk:
// the container is not started, and ps says why.
func (w *world) bootInDoubt(t *testing.T, happens func(id string)) {
	w.meet(t)
	w.must(t, "a", "run", "-d", "--name", container, "--restart", "always", "redis")
	w.id, w.at = w.find(t, "a", container).Definition.ID, "a"
	_, _, id := w.doubt(t)
	w.reboot(t, "a")
	w.linkDown(t)
	happens(id)
	w.reviveAgents(t)
	w.staysEnded(t, "a", container, "is being migrated")
	w.refused(t, "a", "is being migrated", "start", "--force", container)
	w.linkUp(t)
	w.goOn(t, "b", beforeRestore)
	w.ended(t, id, migration.Moved)
	w.expectState(t, "b", engine.Running)
	w.unset(t)
	w.nothingOf(t, "a")
	w.must(t, "b", "rm", "--force", container)
	w.nothingOf(t, "b")
}

// staysEnded checks that a container does not run, and that ps says why.
func (w *world) staysEnded(t *testing.T, node, name, why string) {
	t.Helper()
	eventually(t, name+" not to run, because "+why, func() error {
		c, err := w.named(t, node, name)
		if err == nil && (c.State != engine.Exited || !strings.Contains(c.NotRunning, why)) {
			err = fmt.Errorf("it is %s: %s", c.State, c.NotRunning)
		}
		return err
	})
}

// isStarted waits for a container to run.
func (w *world) isStarted(t *testing.T, node, name string) (c engine.Container) {
	t.Helper()
	eventually(t, name+" to run", func() (err error) {
		c, err = w.named(t, node, name)
		if err == nil && c.State != engine.Running {
			err = fmt.Errorf("it is %s: %s", c.State, c.NotRunning)
		}
		return err
	})
	return c
}

// named finds a container of a node whose agent may still be starting.
func (w *world) named(t *testing.T, node, name string) (engine.Container, error) {
	list, err := w.containers(t.Context(), node)
	for _, c := range list {
		if c.Definition.Name == name {
			return c, err
		}
	}
	return engine.Container{}, errors.Join(err, fmt.Errorf("%s has no container %s", node, name))
}

// TestBoot ends containers of all policies: by themselves, without their agent, and with their nodes. Those
// with a matching policy run again, with their addresses, and ps says why the others do not. A policy moves
// with its container.
func TestBoot(t *testing.T) {
	t.Parallel()
	w := newNodes(t, lab.Config{})
	w.loadRedis(t, "a")
	w.meet(t)
	for name, policy := range map[string]string{
		"always": "always", "unless": "unless-stopped", "failure": "on-failure", "none": "no",
		"stopped": "unless-stopped",
	} {
		w.must(t, "a", "run", "-d", "--name", name, "--restart", policy, "redis")
	}
	w.must(t, "a", "stop", "stopped")
	w.must(t, "a", "run", "-d", "--name", "fails", "--restart", "on-failure:2", "redis", "redis-server",
		"--port", "none")
	w.must(t, "a", "migrate", "--mode", "cold", "unless", "b")
	was := w.find(t, "a", "always")
	w.inNode(t, "a", "kill", "-KILL", strconv.Itoa(was.PID))
	eventually(t, "a killed program to run again", func() error {
		if c := w.isStarted(t, "a", "always"); c.PID == was.PID ||
			c.Definition.Network.Address != was.Definition.Network.Address {
			return fmt.Errorf("it is process %d at %s", c.PID, c.Definition.Network.Address)
		}
		return nil
	})
	was = w.find(t, "a", "always")
	w.killAgent(t, "a")
	w.inNode(t, "a", "kill", "-KILL", strconv.Itoa(was.PID))
	w.reviveAgents(t)
	w.isStarted(t, "a", "always")
	w.staysEnded(t, "a", "fails", "failed again after 2 restarts")
	w.staysEnded(t, "a", "stopped", "was stopped")
	for _, node := range nodes {
		w.reboot(t, node)
	}
	w.reviveAgents(t)
	for name, node := range map[string]string{"always": "a", "failure": "a", "unless": "b"} {
		c := w.isStarted(t, node, name)
		if name == "always" && (c.Definition.Network.Address != was.Definition.Network.Address ||
			c.Definition.Restart != "always") {
			t.Errorf("it has another address, or another policy: %+v", c.Definition)
		}
	}
	w.staysEnded(t, "a", "none", "its node went down, and it has no restart policy")
	w.staysEnded(t, "a", "stopped", "was stopped")
	w.staysEnded(t, "a", "fails", "failed again")
	if shown := w.must(t, "a", "ps", "--all"); !strings.Contains(shown, "NOT RUNNING") ||
		!strings.Contains(shown, "has no restart policy") {
		t.Errorf("ps shows\n%s", shown)
	}
	w.must(t, "a", "start", "none", "stopped")
	w.isStarted(t, "a", "none")
	w.isStarted(t, "a", "stopped")
	w.must(t, "a", "migrate", "--mode", "cold", "none", "b")
	w.bootAlone(t)
}

// bootAlone boots a node that reaches no other: a container that may be elsewhere, too, waits until a user
// decides, or removes the other node.
func (w *world) bootAlone(t *testing.T) {
	w.reboot(t, "a")
	w.linkDown(t)
	w.reviveAgents(t)
	w.staysEnded(t, "a", "always", "may be on b, which cannot be reached")
	w.staysEnded(t, "a", "failure", "may be on b, which cannot be reached")
	if shown := w.must(t, "a", "ps"); !strings.Contains(shown, "may be on b") {
		t.Errorf("ps shows\n%s", shown)
	}
	w.refused(t, "a", "node b cannot say", "start", "always")
	w.must(t, "a", "start", "--force", "always")
	c := w.isStarted(t, "a", "always")
	w.inNode(t, "a", "kill", "-KILL", strconv.Itoa(c.PID)) // it is now known to be here
	eventually(t, "a container that was seen here to run again", func() error {
		if now := w.isStarted(t, "a", "always"); now.PID == c.PID {
			return errors.New("it is the same")
		}
		return nil
	})
	w.staysEnded(t, "a", "failure", "may be on b, which cannot be reached")
	w.must(t, "a", "node", "rm", "--force", "b")
	w.isStarted(t, "a", "failure")
}

// TestBootPutBack restores an old state of a node, from before a container moved away, and boots the node.
// As long as the other node cannot be asked, or has the container, it is not started.
func TestBootPutBack(t *testing.T) {
	t.Parallel()
	w := newNodes(t, lab.Config{})
	w.loadRedis(t, "a")
	w.meet(t)
	w.must(t, "a", "run", "-d", "--name", container, "--restart", "always", "redis")
	w.id = w.find(t, "a", container).Definition.ID
	disk, backup := filepath.Join(lab.StateDirectory, labName(t), "a"), filepath.Join(t.TempDir(), "disk")
	copyDisk(t, disk, backup)
	w.must(t, "a", "migrate", "--mode", "cold", "--wait", container, "b")
	w.reboot(t, "a")
	w.linkDown(t)
	putBack(t, disk, backup)
	w.reviveAgents(t)
	w.staysEnded(t, "a", container, "may be on b, which cannot be reached")
	w.linkUp(t)
	w.staysEnded(t, "a", container, "node b has container")
	w.must(t, "b", "stop", container)
	w.refused(t, "a", "node b has container", "start", "--force", container)
	w.staysEnded(t, "a", container, "node b has container")
	w.must(t, "b", "rm", container)
	w.expectState(t, "a", engine.Running)
}

// TestBootBesideOthers boots a node while other containers are blocked: a container without a relation to
// an unreadable journal starts, and one whose arrival at another node never runs, although its removal is
// not over.
func TestBootBesideOthers(t *testing.T) {
	t.Parallel()
	w := newNodes(t, lab.Config{})
	w.loadRedis(t, "a")
	w.meet(t)
	w.must(t, "a", "run", "-d", "--name", container, "--restart", "always", "redis")
	w.id = w.find(t, "a", container).Definition.ID
	t.Run("journals that cannot be read", func(t *testing.T) {
		w.reboot(t, "a")
		w.killAgent(t, "b")
		for _, node := range nodes {
			directory := w.journal(t, node, "0123456789abcdef")
			err := os.MkdirAll(directory, 0o700)
			if err == nil {
				err = os.WriteFile(filepath.Join(directory, "journal.json"), []byte("{"), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		w.reviveAgents(t)
		w.isStarted(t, "a", container)
		for _, node := range nodes {
			w.forget(t, node, "0123456789abcdef")
		}
	})
	t.Run("an arrival that is not removed", func(t *testing.T) {
		dump := agent.Fault{Side: "source", Step: "dump", When: "before"}
		discard := agent.Fault{Side: "target", Step: "discard", When: "before"}
		w.set(t, "a", dump, agent.FaultPause)
		w.set(t, "b", discard, agent.FaultPause)
		id := w.begin(t, "a", "b")
		w.reach(t, "a", dump)
		w.cancel(t, "a", id)
		w.goOn(t, "a", dump)
		w.reach(t, "b", discard)
		eventually(t, "the source to have undone it", func() error {
			if r, _ := w.report(t, "a", id); r.Result != migration.RolledBack {
				return fmt.Errorf("it is %s", r.Result)
			}
			return nil
		})
		w.reboot(t, "a")
		w.reviveAgents(t)
		w.isStarted(t, "a", container)
		w.goOn(t, "b", discard)
		w.ended(t, id, migration.RolledBack)
	})
}

// putBack restores an old copy of a disk. The directory itself stays: the node has it mounted.
func putBack(t *testing.T, disk, backup string) {
	t.Helper()
	entries, err := os.ReadDir(disk)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(disk, entry.Name())))
	}
	if err != nil {
		t.Fatal(err)
	}
	copyDisk(t, backup, disk)
}

func copyDisk(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "--archive", "--no-target-directory", from,
		to).CombinedOutput(); err != nil {
		t.Fatalf("copy a disk: %v: %s", err, out)
	}
}
