package engines

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// ownRunc is a user's command that bypasses the embedded engine.
const ownRunc = "runc --root /run/godwit/runc"

// orders are a user's commands to an engine for the copy at the source of a migration.
func orders() []interference {
	all := []interference{
		{name: "stop-start", cli: "$0 stop --time 1 $1; $0 start $1", own: "godwit stop --time 1s $1",
			ctr: "ctr task kill $1; ctr task kill -s KILL $1; ctr task rm $1; ctr task start --detach " +
				"--null-io $1",
			lxc: "lxc-stop -n $1 -t 2; lxc-start -n $1", ends: true},
		{name: "kill-start", cli: "$0 kill $1; $0 start $1",
			own: ownRunc + " kill $(ls /run/godwit/runc) KILL",
			ctr: "ctr task kill -s KILL $1; ctr task rm $1; ctr task start --detach --null-io $1",
			lxc: "lxc-stop -k -n $1; lxc-start -n $1", ends: true},
		{name: "remove", cli: "$0 rm --force $1", own: "godwit rm --force $1",
			ctr: "ctr task rm --force $1; ctr containers rm $1", lxc: "lxc-destroy -f -n $1", ends: true},
		{name: "pause", cli: "$0 pause $1; $0 unpause $1", ctr: "ctr task pause $1; ctr task resume $1",
			own: ownRunc + " pause $(ls /run/godwit/runc); " + ownRunc + " resume $(ls /run/godwit/runc)",
			lxc: "lxc-freeze -n $1; lxc-unfreeze -n $1"},
		{name: "update", cli: "$0 update --cpu-shares 512 $1",
			own: ownRunc + " update --cpu-share 512 $(ls /run/godwit/runc)",
			lxc: "lxc-cgroup -n $1 cpu.shares 512"},
		{name: "start", cli: "$0 start $1", ctr: "ctr task start --detach --null-io $1",
			lxc: "lxc-start -n $1"},
		{name: "monitor", own: "pkill -KILL -f '[c]ontainer-monitor'",
			lxc: `pkill -KILL -f "^.lxc [m]onitor. .* $1"`, ends: true},
	}
	for _, m := range interferences() {
		if m.name == "restart" || m.name == "shim" || m.name == "daemon" {
			all = append(all, m)
		}
	}
	return all
}

// moment is when the command is given: the source's step waits before or after it, and the link may be
// down.
type moment struct {
	name, mode string
	at         agent.Fault
	down       bool
	doubt      bool // the source does not know the outcome
	given      bool // the target may run the container, so the copy must not run
	moves      bool // the container ends up at the target, if it is given
}

func moments() []moment {
	push := agent.Fault{Side: "source", Step: "drain", When: "before"}
	return []moment{
		{name: "doubt", doubt: true, given: true, moves: true},
		{name: "doubt-never-ran", doubt: true, given: true},
		{name: "drain", mode: "post-copy", at: push, given: true, moves: true},
		{name: "drain-down", mode: "post-copy", at: push, down: true, given: true, moves: true},
		{name: "live-down", mode: "pre-copy", at: agent.Fault{Side: "source", Step: "freeze", When: "before"},
			down: true},
		{name: "frozen-down", mode: "pre-copy",
			at: agent.Fault{Side: "source", Step: "freeze", When: "after"}, down: true},
	}
}

// TestOrdered: whatever an engine is told to do with the copy at the source, no second copy ever runs, and
// the container is not lost. With -short the command is that of a user who believes that the frozen copy
// hangs.
func TestOrdered(t *testing.T) {
	had := left(t)
	for _, s := range []subject{embedded{}, byDocker{byCommand{inDocker}}, byPodman{byCommand{inPodman}},
		inContainerd{}, inLXC{}} {
		for _, m := range orders() {
			for _, at := range moments() {
				short := m.name == "restart" && at.name == "doubt" &&
					(s.name() == dockerEngine || s.name() == containerdEngine)
				// its address stays in use for a while: see TestLXCStopped in test/faults
				if s.name() == lxcEngine && !at.moves {
					continue
				}
				if m.script(s) != "" && (short || !testing.Short()) {
					t.Run(strings.Join([]string{titleOf(s), m.name, at.name}, "-"),
						func(t *testing.T) { ordered(t, s, m, at, had) })
				}
			}
		}
	}
}

func ordered(t *testing.T, s subject, m interference, at moment, had string) {
	const container = "ordered"
	c := conformance{s: s}
	if s.name() == lxcEngine { // all of its containers have the same address
		eventually(t, "it is not elsewhere",
			func() bool { return in(t, "a", "ip", "route", "show", "10.88.1.200") == "" })
	}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	goOn := at.comes(t, s, container)
	// including children that the copy has just forked
	copied := strings.Fields(in(t, "a", "pgrep", "-f", counters.String()))
	watched := watchCopies(t, "a")
	log, _ := world.lab.Exec(t.Context(), "a", c.tally(container)...)
	done := make(chan error, 1)
	go func() { // it may wait until the migration continues
		_, err := world.lab.Exec(context.Background(), "a", m.does(s, container)...)
		done <- err
	}()
	eventually(t, "it is being done", func() bool {
		return len(done) > 0 || tried(t, "a", "pgrep", "-f", "^sh -c : interference") == nil
	})
	if m.mends != nil {
		m.mends(t, s, "a")
	}
	if now, err := world.lab.Exec(t.Context(), "a", c.tally(container)...); at.given && err == nil &&
		now != log {
		t.Errorf("it ran: %s", strings.TrimPrefix(now, log))
	}
	if !at.moves {
		at.onlyRan(t, copied, watched())
	}
	err := goOn()
	eventually(t, "what was ordered is over", func() bool { return len(done) > 0 })
	t.Logf("%s: %v; the move: %v", m.name, <-done, err)
	if at.moves {
		at.onlyRan(t, copied, watched())
	}
	if at.given && (err == nil) != at.moves {
		t.Errorf("the migration says %v", err)
	}
	if err == nil {
		c.counted(t, "b", container, c.counted(t, "b", container, 1))
	} else if m.ends && m.name != "remove" && copies(t, "a") == 0 && s.name() != ownEngine {
		startsAgain(t, s, container)
	}
	c.oneCopy(t, container, err == nil, m.ends && err != nil)
	m.cleanUp(t, s, err != nil)
	if now := had; !labtest.Within(patience, func() bool { now = left(t); return now == had }) {
		t.Errorf("there were\n%s\nand are\n%s", had, now)
	}
}

// comes brings a migration to the moment. goOn ends that, and returns the migration's result.
func (at moment) comes(t *testing.T, s subject, container string) (goOn func() error) {
	t.Helper()
	if at.doubt {
		held, over := inDoubt(t, s, container)
		return func() error {
			if at.moves {
				held.goOn(t)
				eventually(t, "it runs at b", func() bool { return copies(t, "b") == 1 })
			}
			return over(!at.moves)
		}
	}
	stop := fault(t, "a", at.at, agent.FaultPause)
	moved := moving(t, s, container, at.mode, stop)
	up := func() {}
	if at.down {
		up = linkDown(t)
	}
	return func() error {
		stop.goOn(t)
		eventually(t, "the source has seen that the link is down", func() bool {
			return !at.down || at.given || len(moved) > 0 ||
				strings.Contains(in(t, "a", "godwit", "migration", "ls"), "in-doubt")
		})
		up()
		eventually(t, "the migration is over", func() bool { return len(moved) > 0 })
		return <-moved
	}
}

// onlyRan checks that only the copy's processes have counted since it had to stand still.
func (at moment) onlyRan(t *testing.T, copied, ran []string) {
	t.Helper()
	for _, pid := range ran {
		if at.given && !slices.Contains(copied, pid) {
			t.Errorf("a second copy ran, process %s", pid)
		}
	}
}

// watchCopies looks for counting processes, until it is asked for those that it saw.
func watchCopies(t *testing.T, node string) (ran func() []string) {
	t.Helper()
	const watches = "/tmp/watches"
	in(t, node, "touch", watches)
	ends := func() { _, _ = world.lab.Exec(context.Background(), node, "rm", "-f", watches) }
	t.Cleanup(ends)
	saw := make(chan string, 1)
	go func() {
		all, _ := world.lab.Exec(context.Background(), node, "sh", "-c",
			"while [ -e "+watches+" ]; do pgrep -f '"+counters.String()+"'; sleep 0.05; done | sort -u")
		saw <- all
	}()
	return func() []string {
		ends()
		return strings.Fields(<-saw)
	}
}

// TestChangedMeanwhile: an engine's change to a container that still runs at the source is not lost: the
// move fails, and the next one includes the change.
func TestChangedMeanwhile(t *testing.T) {
	const container, renamed = "changed", "changed-now"
	for _, change := range []struct {
		s          subject
		does, name string
	}{
		{byDocker{byCommand{inDocker}}, "docker update --memory 64m --memory-swap 64m " + container,
			container},
		{byDocker{byCommand{inDocker}}, "docker rename " + container + " " + renamed, renamed},
		{byPodman{byCommand{inPodman}}, "podman rename " + container + " " + renamed, renamed},
	} {
		if testing.Short() && change.name == renamed {
			continue
		}
		t.Run(change.does, func(t *testing.T) {
			c := conformance{s: change.s}
			c.begins(t, container, nil, count)
			t.Cleanup(func() { c.removed(renamed) })
			stop := fault(t, "a", agent.Fault{Side: "source", Step: "prepare", When: "before"},
				agent.FaultPause)
			moved := moving(t, change.s, container, "pre-copy", stop)
			in(t, "a", "sh", "-c", change.does)
			stop.goOn(t)
			if err := <-moved; err == nil || !strings.Contains(err.Error(), "changed during the move") {
				t.Errorf("the move: %v", err)
			}
			was := c.seen(t, "a", change.name).Definition.Limits
			// b may not have finished yet
			eventually(t, "it moves",
				func() bool { return c.migrate(t, change.name, "a", "b", "cold") == nil })
			if is := c.seen(t, "b", change.name).Definition.Limits; is != was {
				t.Errorf("its limits are %v, were %v", is, was)
			}
			c.oneCopy(t, change.name, true, false)
		})
	}
}
