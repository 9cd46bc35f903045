package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

var (
	beforePrepare = agent.Fault{Side: "source", Step: "prepare", When: "before"}
	beforeFreeze  = agent.Fault{Side: "source", Step: "freeze", When: "before"}
	beforeReceive = agent.Fault{Side: "target", Step: "receive", When: "before"}
)

// TestEngineFails lets CRIU, the memory and the container itself fail.
func TestEngineFails(t *testing.T) {
	w := newWorld(t)
	w.learnOrder(t)
	t.Run("CRIU dies in the dump", w.dumpDies)
	t.Run("CRIU cannot restore", w.restoreFails)
	t.Run("no memory for the state", w.memoryFull)
	t.Run("the target is out of memory", w.outOfMemory)
	t.Run("no CRIU at the target", w.noCRIU)
	t.Run("busy", w.busyWhileMigrating)
	w.clientIsHappy(t)
	for _, point := range []agent.Fault{beforePrepare, beforeFreeze} {
		t.Run("the container ends before "+point.Step, func(t *testing.T) { w.containerEnds(t, point) })
	}
}

// dumpDies gives the source a CRIU that may write only a few bytes to a file, which kills it in the middle.
func (w *world) dumpDies(t *testing.T) {
	w.meet(t)
	from := w.at
	script := filepath.Join(w.runDir(t, from), "criu-that-dies")
	program, err := filepath.EvalSymlinks("/opt/godwit/bin/criu")
	if err != nil {
		t.Fatal(err)
	}
	content := "#!/bin/sh\n[ -e /run/godwit/faults/criu ] && ulimit -f 1\nexec " + program + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	w.stopAgent(t, from)
	w.startAgent(t, from, "GODWIT_CRIU=/run/godwit/criu-that-dies")
	w.meet(t)
	w.set(t, from, beforePrepare, agent.FaultPause)
	id := w.begin(t, from, other(from))
	w.reach(t, from, beforePrepare)
	if err := os.WriteFile(filepath.Join(w.runDir(t, from), "faults/criu"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.goOn(t, from, beforePrepare)
	w.settle(t, id)
	w.stopAgent(t, from)
	w.startAgent(t, from)
	if err := os.Remove(script); err != nil {
		t.Fatal(err)
	}
	w.end(t, from, id, false, "dump failed")
}

// restoreFails damages received state.
func (w *world) restoreFails(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	w.set(t, to, beforeRestore, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, to, beforeRestore)
	images := filepath.Join(w.runDir(t, to), "containers", w.id, "images")
	cores, err := filepath.Glob(filepath.Join(images, "core-*.img"))
	if err != nil || len(cores) == 0 {
		t.Fatalf("no state in %s: %v", images, err)
	}
	if err := os.Truncate(cores[len(cores)-1], 100); err != nil {
		t.Fatal(err)
	}
	w.goOn(t, to, beforeRestore)
	w.end(t, from, id, false, "restore failed")
}

// memoryFull makes the directory in memory too small for the state.
func (w *world) memoryFull(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	w.set(t, to, beforeReceive, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, to, beforeReceive)
	if _, err := w.lab.Exec(t.Context(), to, "mount", "-o", "remount,size=64k",
		"/run/godwit/containers/"+w.id+"/images"); err != nil {
		t.Fatal(err)
	}
	w.goOn(t, to, beforeReceive)
	w.end(t, from, id, false, "no space left")
}

// outOfMemory lets the kernel kill the largest process at the target, which is the agent, while the state
// comes.
func (w *world) outOfMemory(t *testing.T) {
	w.meet(t)
	w.fill(t, 48<<20)
	from, to := w.at, other(w.at)
	w.set(t, to, beforeReceive, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, to, beforeReceive)
	lift := w.limitMemory(t, to, 16<<20)
	w.goOn(t, to, beforeReceive)
	eventually(t, "the kernel to kill the agent, or the migration to end", func() error {
		if pid, err := w.lab.AgentPID(to); err != nil || pid == 0 {
			return err
		}
		if r, _ := w.report(t, from, id); r.Result == migration.ResultRuns {
			return fmt.Errorf("it goes on: %+v", r)
		}
		return nil
	})
	lift()
	w.reviveAgents(t)
	w.end(t, from, id, false)
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// fill lets Redis use memory.
func (w *world) fill(t *testing.T, bytes int) {
	t.Helper()
	if out := w.must(t, w.at, "exec", container, "redis-cli", "setrange", "fill", fmt.Sprint(bytes-1),
		"x"); strings.TrimSpace(out) != fmt.Sprint(bytes) {
		t.Fatalf("redis says %q", out)
	}
}

// limitMemory lets a node's processes use this much more memory than now. The kernel's caches do not count.
func (w *world) limitMemory(t *testing.T, node string, more int64) (lift func()) {
	t.Helper()
	for _, place := range []struct {
		dir, limit, none string
		used             []string
	}{
		{"/sys/fs/cgroup/memory/godwit-lab/", "memory.limit_in_bytes", "-1",
			[]string{"total_rss", "total_shmem"}},
		{"/sys/fs/cgroup/godwit-lab/", "memory.max", "max", []string{"anon", "shmem"}},
	} {
		dir := filepath.Join(place.dir, w.lab.Name(), node)
		stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
		if os.IsNotExist(err) {
			continue
		}
		var now int64
		for line := range strings.Lines(string(stat)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			bytes, err := strconv.ParseInt(value, 10, 64)
			if err == nil && slices.Contains(place.used, name) {
				now += bytes
			}
		}
		set := func(value string) {
			if err := os.WriteFile(filepath.Join(dir, place.limit), []byte(value), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		set(fmt.Sprint(now + more))
		return func() { set(place.none) }
	}
	t.Fatal("no cgroup with a limit of memory")
	return nil
}

func (w *world) noCRIU(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	w.stopAgent(t, to)
	w.startAgent(t, to, "GODWIT_CRIU=/nonexistent/criu")
	w.meet(t)
	out, err := w.godwit(t.Context(), from, "migrate", container, to)
	if err == nil || !strings.Contains(out+err.Error(), "CRIU") {
		t.Errorf("to a node without CRIU: %s %v", out, err)
	}
	w.stopAgent(t, to)
	w.startAgent(t, to)
	w.inOrder(t)
	w.clientGoesOn(t)
}

// busyWhileMigrating tries forbidden operations on a container that is being moved.
func (w *world) busyWhileMigrating(t *testing.T) {
	w.meet(t)
	from, to := w.at, other(w.at)
	w.set(t, from, beforePrepare, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, from, beforePrepare)
	for _, args := range [][]string{
		{"stop", container}, {"rm", "--force", container}, {"exec", container, "true"},
		{"migrate", container, to},
	} {
		out, err := w.godwit(t.Context(), from, args...)
		if err == nil || !strings.Contains(err.Error(), "is being migrated ("+id+")") {
			t.Errorf("%s while migrating: %s %v", args[0], out, err)
		}
	}
	w.goOn(t, from, beforePrepare)
	w.end(t, from, id, true)
	w.execGoesOn(t)
}

// execGoesOn checks that a user's process in a container keeps it from being moved, and is not harmed.
func (w *world) execGoesOn(t *testing.T) {
	t.Helper()
	from := w.at
	cmd, err := w.lab.Command(t.Context(), from, "godwit", "exec", "-i", container, "cat")
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	echo := func() {
		t.Helper()
		answer := make([]byte, 2)
		if _, err := stdin.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := stdout.Read(answer); err != nil || string(answer) != "x\n" {
			t.Fatalf("exec answers %q, %v", answer, err)
		}
	}
	echo()
	out, err := w.godwit(t.Context(), from, "migrate", container, other(from))
	if err == nil || !strings.Contains(out+err.Error(), "exec") {
		t.Errorf("migrate with an exec session: %s %v", out, err)
	}
	echo()
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	w.settleNow(t)
}

// settleNow checks that no migration is under way and everything is in order.
func (w *world) settleNow(t *testing.T) {
	t.Helper()
	eventually(t, "exactly one node to run the container", w.runsOnce)
	w.inOrder(t)
	w.clientGoesOn(t)
}

// containerEnds kills the container while its move is prepared. Then there is nothing to move.
func (w *world) containerEnds(t *testing.T, point agent.Fault) {
	w.meet(t)
	const name = "short"
	w.must(t, w.at, "run", "-d", "--name", name, "redis")
	from, to := w.at, other(w.at)
	short := w.find(t, from, name)
	before := w.look(t, to)
	w.set(t, from, point, agent.FaultPause)
	id := w.beginOf(t, name, from, to)
	w.reach(t, from, point)
	if _, err := w.lab.Exec(t.Context(), from, "kill", "-KILL", fmt.Sprint(short.PID)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container to have ended", func() error {
		if now := w.find(t, from, name); now.State != engine.Exited {
			return fmt.Errorf("it is %s", now.State)
		}
		return nil
	})
	w.goOn(t, from, point)
	eventually(t, "the migration to end", func() error {
		for _, node := range nodes {
			if r, _ := w.report(t, node, id); r.Result != migration.RolledBack {
				return fmt.Errorf("on %s it is %s", node, r.Result)
			}
		}
		return nil
	})
	w.unset(t)
	if now := w.find(t, from, name); now.State != engine.Exited || now.ExitCode != 128+int(unix.SIGKILL) {
		t.Errorf("it is %s, exit code %d", now.State, now.ExitCode)
	}
	if r, _ := w.report(t, from, id); r.Error == nil ||
		!containsAny(*r.Error, []string{"ended", "not running"}) {
		t.Errorf("the report does not say that the container ended: %s", deref(r.Error))
	}
	eventually(t, to+" to be as before", func() error { return before.compare(w.look(t, to)) })
	w.must(t, from, "rm", name)
	w.inOrder(t)
}
