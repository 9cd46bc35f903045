package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/migration"
)

// inNode runs a command of the machine in a node.
func (w *world) inNode(t *testing.T, node string, args ...string) string {
	t.Helper()
	command, err := w.lab.Command(t.Context(), node, args...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %v: %s", node, args, err, out)
	}
	return string(out)
}

// startLXC makes a container with Redis, for which it has the machine's libraries.
func (w *world) startLXC(t *testing.T) {
	t.Helper()
	inittab := "::sysinit:/bin/true\n::respawn:/bin/redis-server --protected-mode no --save '' --dir /tmp\n"
	directory, err := w.lab.Engines().CreateLXC(t.Context(), "a", container, "10.88.1.200", inittab)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"redis-server", "redis-cli"} {
		err = errors.Join(err, copyProgram(name, filepath.Join(directory, "rootfs/bin", name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.inNode(t, "a", "lxc-start", "-n", container)
	w.awaitSeen(t)
	w.askRedis(t)
}

// copyProgram copies a program of the machine.
func copyProgram(name, to string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(to, program, 0o755)
}

// root returns the path of a node's file system on the machine.
func (w *world) root(t *testing.T, node string) string {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// TestLXCStopped: a user stops the container with LXC's own tools at each step. At the end it runs nowhere,
// or at one node, and neither LXC has a partial container.
func TestLXCStopped(t *testing.T) {
	w := newWorldVia(t, lxc, migration.PreCopy, patient)
	for _, f := range []agent.Fault{
		{Side: "source", Step: "prepare", When: "after"}, {Side: "source", Step: "freeze", When: "after"},
		{Side: "source", Step: "dump", When: "after"}, {Side: "target", Step: "receive", When: "after"},
		{Side: "source", Step: "destroy", When: "before"},
	} {
		t.Run(f.Side+"-"+f.Step, func(t *testing.T) { w.stopMeanwhile(t, f) })
	}
}

func (w *world) stopMeanwhile(t *testing.T, f agent.Fault) {
	from, to := w.at, other(w.at)
	node := from
	if f.Side == "target" {
		node = to
	}
	w.set(t, node, f, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, node, f)
	w.guarded(t, from)
	stopped := make(chan error, 1)
	go func() { // it waits for the container's end, which a keeper may delay
		_, err := w.lab.Exec(context.Background(), from, "lxc-stop", "-k", "-n", container)
		stopped <- err
	}()
	eventually(t, "it is being stopped", func() error {
		if len(stopped) > 0 {
			return nil
		}
		_, err := w.lab.Exec(t.Context(), from, "pgrep", "-f", "^lxc-stop")
		return err
	})
	w.goOn(t, node, f)
	if err := <-stopped; err != nil {
		t.Logf("lxc-stop: %v", err)
	}
	w.unset(t)
	var r migration.Report
	eventually(t, "the migration to end", func() error {
		var known bool
		if r, known = w.report(t, from, id); known &&
			(r.Result == migration.ResultRuns || r.Result == migration.ResultDoubt) {
			return fmt.Errorf("it is %s", r.Result)
		}
		return nil
	})
	if r.Result == migration.Moved {
		w.at = to
		eventually(t, "the container to run at "+to, w.runsOnce)
		if list := w.inNode(t, from, "lxc-ls"); strings.TrimSpace(list) != "" {
			t.Errorf("it moved, and LXC at %s still has %q", from, list)
		}
		return
	}
	eventually(t, "LXC at "+to+" to have nothing left", func() error {
		if list := w.inNode(t, to, "lxc-ls"); strings.TrimSpace(list) != "" {
			return fmt.Errorf("it has %q", list)
		}
		return nil
	})
	if state := strings.TrimSpace(w.inNode(t, from, "lxc-info", "-n", container, "-sH")); state != "STOPPED" {
		t.Errorf("it was stopped and did not move, and LXC says %s", state)
	}
	// as before; its last monitor may still be ending
	eventually(t, "LXC at "+from+" to start it again", func() error {
		_, err := w.lab.Exec(t.Context(), from, "lxc-start", "-n", container)
		return err
	})
	eventually(t, "the container to run again", w.runsOnce)
}

// guarded checks that LXC cannot start a departing container.
func (w *world) guarded(t *testing.T, node string) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(w.root(t, node), "var/lib/lxc", container, "config"))
	if err != nil || !strings.Contains(string(config), "lxc.hook.pre-start = /bin/false") {
		t.Errorf("the configuration of a container that leaves: %v\n%s", err, config)
	}
	if list := w.inNode(t, node, "lxc-autostart", "-L"); strings.TrimSpace(list) != "" {
		t.Errorf("LXC would start %q at the next boot", list)
	}
}
