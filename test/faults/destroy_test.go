package faults

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestDestroyCutShort ends the source's agent in the middle of its last steps: the processes of the frozen
// copy have ended, and the rest of it is still there. The next agent begins with the post-copy push again.
func TestDestroyCutShort(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, migration.PostCopy, patient)
	w.meet(t)
	from, to := w.at, other(w.at)
	destroy := agent.Fault{Side: "source", Step: "destroy", When: "before"}
	w.set(t, from, destroy, agent.FaultPause)
	id := w.begin(t, from, to)
	w.reach(t, from, destroy)
	frozen := w.find(t, from, container)
	w.killAgent(t, from)
	w.unset(t)
	w.endCopy(t, from, frozen)
	w.reviveAgents(t)
	w.settle(t, id)
	if r, _ := w.report(t, from, id); r.Result != migration.Moved {
		t.Errorf("it ends as %+v", r)
	}
	w.clientIsHappy(t)
}

// endCopy ends the processes of a frozen copy, and removes their cgroups.
func (w *world) endCopy(t *testing.T, node string, frozen engine.Container) {
	t.Helper()
	if _, err := w.lab.Exec(t.Context(), node, "kill", "-KILL", fmt.Sprint(frozen.PID)); err != nil {
		t.Fatal(err)
	}
	for _, pid := range w.processesOf(t, node, "memory-keeper") { // it holds even killed processes
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf(`for group in /sys/fs/cgroup/godwit/%[1]s /sys/fs/cgroup/*/godwit/%[1]s; do
			[ ! -e $group/freezer.state ] || echo THAWED >$group/freezer.state
			[ ! -e $group/cgroup.freeze ] || echo 0 >$group/cgroup.freeze
			until [ ! -e $group ] || find $group -depth -type d -exec rmdir {} +; do :; done
		done`, frozen.Definition.ID)
	if _, err := w.lab.Exec(t.Context(), node, "sh", "-c", script); err != nil {
		t.Fatal(err)
	}
}
