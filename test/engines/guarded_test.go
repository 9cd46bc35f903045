package engines

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
)

// restarts returns scripts with which people make an engine start a container that seems to run, or to have
// ended. The last command of each is a start.
func restarts(s subject, container string) []string {
	all := []string{"godwit rm --force " + container, "godwit stop --time 1s " + container}
	switch s.name() {
	case dockerEngine, podmanEngine:
		is := s.name()
		all = []string{
			is + " restart --time 1 " + container,
			is + " stop --time 1 " + container + "; " + is + " start " + container,
			is + " kill " + container + "; " + is + " start " + container,
		}
	case containerdEngine:
		all = []string{
			"ctr task rm --force " + container + "; ctr task start --detach --null-io " + container,
			"ctr task kill -s KILL " + container + "; ctr task rm " + container +
				"; ctr task start --detach --null-io " + container,
		}
	}
	if testing.Short() {
		all = all[:1]
	}
	return all
}

// guardable returns the engines for which that is tried. An address of an LXC container that stays at the
// other node blocks the next container with it here, so LXC's guard is tested elsewhere (test/faults); with
// -short Podman's, too, which has its own tests.
func guardable() []subject {
	all := []subject{embedded{}, byDocker{byCommand{inDocker}}, inContainerd{}}
	if !testing.Short() {
		all = append(all, byPodman{byCommand{inPodman}})
	}
	return all
}

// TestGuarded: while it is not known where a container runs, no engine starts its copy, whatever the
// command. If the other node runs the container, that copy is the only one that ever ran, and if it never
// ran there the engine can start its copy again.
func TestGuarded(t *testing.T) {
	for _, s := range guardable() {
		t.Run(titleOf(s), func(t *testing.T) {
			t.Run("runs at the target", func(t *testing.T) { guardedInDoubt(t, s, true) })
			if s.name() == dockerEngine || s.name() == containerdEngine || !testing.Short() {
				t.Run("never ran there", func(t *testing.T) { guardedInDoubt(t, s, false) })
			}
		})
	}
}

func guardedInDoubt(t *testing.T, s subject, runs bool) {
	const container = "guarded"
	c := conformance{s: s}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	frozen := counting(t, "a")
	held, goOn := inDoubt(t, s, container)
	if s.name() != ownEngine { // a keeper would delay its end: see TestHeldInDoubt
		in(t, "a", append([]string{"kill", "-KILL"}, frozen...)...)
		endKeepers(t, "a")
		eventually(t, "the copy has ended", func() bool { return copies(t, "a") == 0 })
	}
	for _, script := range restarts(s, container) {
		err := tried(t, "a", "sh", "-c", script)
		if err == nil {
			t.Errorf("%s: it succeeded", script)
		}
		t.Logf("%s: %v", script, err)
		if says := s.name() == dockerEngine || s.name() == containerdEngine ||
			s.name() == podmanEngine; says && !strings.Contains(fmt.Sprint(err), "godwit migration ls") {
			t.Errorf("%s: the engine does not say why: %v", script, err)
		}
		noSecond(t, "a", frozen)
	}
	if s.name() == dockerEngine && runs {
		restartsDaemon(t, s, container, frozen)
	}
	if runs {
		held.goOn(t)
		eventually(t, "it runs at b", func() bool { return copies(t, "b") == 1 })
		noSecond(t, "a", frozen)
	}
	if err := goOn(!runs); (err == nil) != runs {
		t.Errorf("the migration says %v", err)
	}
	if runs || s.name() == ownEngine {
		c.oneCopy(t, container, runs, false)
		return
	}
	eventually(t, "nothing of it is at b", func() bool { return copies(t, "b") == 0 })
	startsAgain(t, s, container)
	c.oneCopy(t, container, false, false)
}

// linkDown takes the link down until up is called, or the test is over.
func linkDown(t *testing.T) (up func()) {
	t.Helper()
	up = func() {
		if err := world.lab.LinkUp("a", "b"); err != nil {
			t.Error(err)
		}
	}
	if err := world.lab.LinkDown("a", "b"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up)
	return up
}

// inDoubt brings a migration from a into doubt: the target waits before its restore, and the link is down.
// goOn takes it up again, lets the target's step fail if fails is set, and waits for the migration's end.
func inDoubt(t *testing.T, s subject, container string) (held point, goOn func(fails bool) error) {
	t.Helper()
	held = fault(t, "b", agent.Fault{Side: "target", Step: "restore", When: "before"}, agent.FaultPause)
	moved := make(chan error, 1)
	go func() {
		_, err := world.lab.Exec(context.Background(), "a", "godwit", "migrate", "--mode", "pre-copy",
			godwitName(s, container), "b")
		moved <- err
	}()
	eventually(t, "the target has all", func() bool {
		if len(moved) > 0 {
			t.Fatalf("the move was over before: %v", <-moved)
		}
		return held.isReached()
	})
	up := linkDown(t)
	eventually(t, "it is in doubt", func() bool {
		return strings.Contains(in(t, "a", "godwit", "migration", "ls"), "in-doubt")
	})
	return held, func(fails bool) error {
		if fails { // it answers never-ran when it is asked
			in(t, "b", "sh", "-c", "id=$(godwit migration ls | awk '/running/ { print $1; exit }'); "+
				"godwit migration cancel $id")
			held.goOn(t)
		}
		up()
		eventually(t, "nobody is in doubt", func() bool {
			return !strings.Contains(in(t, "a", "godwit", "migration", "ls"), "in-doubt")
		})
		eventually(t, "the migration is over", func() bool { return len(moved) > 0 })
		return <-moved
	}
}

// restartsDaemon kills and restarts Docker's daemon, which must not start the container because of that
// either.
func restartsDaemon(t *testing.T, s subject, container string, frozen []string) {
	t.Helper()
	in(t, "a", "sh", "-c", "kill -KILL $(cat /run/docker.pid)")
	restartDaemon(t, s, "a")
	if err := tried(t, "a", "docker", "start", container); err == nil {
		t.Error("a daemon that was started again starts it")
	}
	noSecond(t, "a", frozen)
}

// startsAgain makes the engine start a container that a user has ended during its departure.
func startsAgain(t *testing.T, s subject, container string) {
	t.Helper()
	script := s.name() + " start " + container
	switch s.name() {
	case containerdEngine:
		script = "ctr task rm " + container + " 2>/dev/null; ctr task start --detach --null-io " + container
	case lxcEngine:
		script = "lxc-start -n " + container
	}
	in(t, "a", "sh", "-c", script)
	eventually(t, "it runs at a again", func() bool { return copies(t, "a") == 1 })
	if one := (conformance{s: s}).seen(t, "a", container); one.State != engine.Running {
		t.Errorf("it is %s", one.State)
	}
}

// endKeepers ends the processes that hold frozen copies: killed copies end then.
func endKeepers(t *testing.T, node string) {
	t.Helper()
	in(t, node, "sh", "-c", endsKeepers)
}

const endsKeepers = "kill -KILL $(pgrep -f '^godwit [m]emory-keeper')"

// noSecond checks that a node has no counting process except those that existed before.
func noSecond(t *testing.T, node string, before []string) {
	t.Helper()
	for _, pid := range counting(t, node) {
		if !slices.Contains(before, pid) {
			t.Errorf("a second copy runs on %s, process %s", node, pid)
		}
	}
}

// TestKilledWhilePushing: removing the copy that its engine still lists as running, while it has remote
// pages, loses none of them: the container at the other node gets them all.
func TestKilledWhilePushing(t *testing.T) {
	for _, s := range guardable() {
		if testing.Short() && s.name() != dockerEngine {
			continue
		}
		t.Run(titleOf(s), func(t *testing.T) { killedWhilePushing(t, s) })
	}
}

func killedWhilePushing(t *testing.T, s subject) {
	const container = "drained"
	c := conformance{s: s}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	frozen := counting(t, "a")
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "drain", When: "before"}, agent.FaultPause)
	moved := make(chan error, 1)
	go func() {
		_, err := world.lab.Exec(context.Background(), "a", "godwit", "migrate", "--wait", "--mode",
			"post-copy", godwitName(s, container), "b")
		moved <- err
	}()
	eventually(t, "it runs at b", func() bool {
		if len(moved) > 0 {
			t.Fatalf("the move was over before: %v", <-moved)
		}
		return stop.isReached()
	})
	removed := make(chan error, 1)
	go func() { // it waits for an end that does not come yet, or gives up
		_, err := world.lab.Exec(context.Background(), "a", "sh", "-c", ": removing; "+removal(s, container))
		removed <- err
	}()
	eventually(t, "it is being removed", func() bool {
		return len(removed) > 0 || tried(t, "a", "pgrep", "-f", "^sh -c : removing") == nil
	})
	in(t, "a", append([]string{"kill", "-KILL"}, frozen...)...) // whatever the engine has done by now
	stop.goOn(t)
	eventually(t, "the migration is over", func() bool { return len(moved) > 0 })
	if err := <-moved; err != nil {
		t.Errorf("the move: %v", err)
	}
	t.Logf("%s: %v", removal(s, container), <-removed)
	eventually(t, "nothing of it runs at a", func() bool { return copies(t, "a") == 0 })
	c.counted(t, "b", container, c.counted(t, "b", container, 1))
	c.oneCopy(t, container, true, false)
}

// removal returns a script with which people remove a running container.
func removal(s subject, container string) string {
	if s.name() == containerdEngine {
		return "ctr task rm --force " + container
	}
	return quoted(s.does(remove, container))
}
