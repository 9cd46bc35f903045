package engines

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
)

// thaws returns a script with which people make an engine continue a container that seems paused.
func thaws(s subject, container string) string {
	switch is := s.name(); is {
	case dockerEngine, podmanEngine:
		return is + " pause " + container + "; " + is + " unpause " + container
	case containerdEngine:
		return "ctr task pause " + container + "; ctr task resume " + container
	case lxcEngine:
		return "lxc-freeze -n " + container + "; lxc-unfreeze -n " + container
	}
	const runc = "runc --root /run/godwit/runc "
	return runc + "pause $(ls /run/godwit/runc); " + runc + "resume $(ls /run/godwit/runc)"
}

// thawByHand acts like an engine with Godwit's freezer, until the kernel says that the group is not frozen:
// an agent in doubt freezes it again, as often as it looks.
func thawByHand(t *testing.T, node, pid string) {
	t.Helper()
	in(t, node, "sh", "-c", thawsByHand(pid))
}

func thawsByHand(pid string) string {
	return `groups=/proc/` + pid + `/cgroup
		d=$(findmnt -nt cgroup2 -o TARGET | head -n 1)$(sed -n 's/^0:://p' $groups)
		if ! [ -e $d/cgroup.freeze ]; then
			d=$(findmnt -nt cgroup -O freezer -o TARGET | head -n 1)$(sed -n 's/^[0-9]*:freezer://p' $groups)
		fi
		for try in 1 2 3 4 5 6 7 8 9; do
			if [ -e $d/cgroup.freeze ]; then
				echo 0 >$d/cgroup.freeze && grep -qx 'frozen 0' $d/cgroup.events && exit
			else
				echo THAWED >$d/freezer.state && grep -qx THAWED $d/freezer.state && exit
			fi
		done
		echo "$d is not thawed" >&2
		exit 1`
}

// kills returns a script with which people end a container that seems to run.
func kills(s subject, container string) string {
	switch is := s.name(); is {
	case dockerEngine, podmanEngine:
		return is + " kill " + container
	case containerdEngine:
		return "ctr task kill -s KILL " + container
	case lxcEngine:
		return "lxc-stop -k -n " + container
	}
	return "runc --root /run/godwit/runc kill $(ls /run/godwit/runc) KILL"
}

// doubted returns the engines for which that is tried: reaching doubt takes more than ten seconds each
// time.
func doubted() []subject {
	if testing.Short() {
		return heldEngines()[:1]
	}
	return heldEngines()
}

// heldEngines returns the engines for shorter tests.
func heldEngines() []subject {
	if testing.Short() {
		return []subject{byDocker{byCommand{inDocker}}, inContainerd{}}
	}
	return []subject{
		embedded{}, byDocker{byCommand{inDocker}}, byPodman{byCommand{inPodman}}, inContainerd{}, inLXC{},
	}
}

// TestHeldInDoubt: while it is not known where a container runs, no process of the copy at its source
// executes an instruction, whoever thaws it; killing it loses nothing that is needed.
func TestHeldInDoubt(t *testing.T) {
	for _, s := range doubted() {
		t.Run(titleOf(s), func(t *testing.T) {
			t.Run("killed, and runs at the target", func(t *testing.T) { heldInDoubt(t, s, true, true) })
			if s.name() == dockerEngine {
				t.Run("killed, and never ran there", func(t *testing.T) { heldInDoubt(t, s, true, false) })
			}
			if !testing.Short() && s.name() != lxcEngine { // its address stays at the other node for a while
				t.Run("never ran there", func(t *testing.T) { heldInDoubt(t, s, false, false) })
			}
		})
	}
}

func heldInDoubt(t *testing.T, s subject, killed, runs bool) {
	const container = "held"
	c := conformance{s: s}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	frozen := counting(t, "a")
	held, goOn := inDoubt(t, s, container)
	at := in(t, "a", c.tally(container)...)
	t.Logf("%s: %v", thaws(s, container), tried(t, "a", "sh", "-c", thaws(s, container)))
	thawByHand(t, "a", frozen[0])
	eventually(t, "it is frozen again", func() bool {
		return c.seen(t, "a", container).State == engine.Frozen
	})
	if now := in(t, "a", c.tally(container)...); now != at {
		t.Errorf("it ran: %s", strings.TrimPrefix(now, at))
	}
	ended := make(chan error, 1)
	if killed {
		go func() { // it waits for an end that does not come yet, or gives up
			_, err := world.lab.Exec(context.Background(), "a", "sh", "-c", kills(s, container))
			ended <- err
		}()
		in(t, "a", append([]string{"kill", "-KILL"}, frozen...)...)
		err := tried(t, "a", "sh", "-c", "godwit thaw "+godwitName(s, container))
		if err == nil || !strings.Contains(err.Error(), "killed the frozen copy") {
			t.Errorf("godwit thaw of what was killed: %v", err)
		}
		if left := counting(t, "a"); !slices.Equal(left, frozen) {
			t.Errorf("processes %v are left of %v", left, frozen)
		}
	}
	if runs {
		held.goOn(t)
		eventually(t, "it runs at b", func() bool { return copies(t, "b") == 1 })
	}
	if err := goOn(!runs); (err == nil) != runs {
		t.Errorf("the migration says %v", err)
	}
	if killed {
		t.Logf("%s: %v", kills(s, container), <-ended)
	}
	if runs {
		c.counted(t, "b", container, c.counted(t, "b", container, 1))
		c.oneCopy(t, container, true, false)
		return
	}
	eventually(t, "nothing of it is at b", func() bool { return copies(t, "b") == 0 })
	if killed { // as a user has requested
		eventually(t, "it has ended", func() bool { return copies(t, "a") == 0 })
		startsAgain(t, s, container)
	} else {
		c.counted(t, "a", container, c.counted(t, "a", container, 1))
	}
	c.oneCopy(t, container, false, false)
}

// TestThawedInDoubt: a copy that nothing holds runs when it is thawed. While it is not known where the
// container runs, the copy is frozen and held again, and an alarm reports that.
func TestThawedInDoubt(t *testing.T) {
	for _, s := range doubted() {
		t.Run(titleOf(s), func(t *testing.T) { thawedInDoubt(t, s) })
	}
}

func thawedInDoubt(t *testing.T, s subject) {
	const container = "thawed"
	c := conformance{s: s}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	was := counting(t, "a")
	held, goOn := inDoubt(t, s, container)
	eventually(t, "there is an alarm", func() bool { // an agent may hold it again in between
		listed := in(t, "a", "sh", "-c", "godwit ps 2>&1 || [ $? = 4 ]")
		if strings.Contains(listed, "has thawed the frozen copy") {
			return true
		}
		in(t, "a", "sh", "-c", endsKeepers+" 2>/dev/null; "+thawsByHand(was[0]))
		return false
	})
	eventually(t, "it is frozen and held again", func() bool {
		return c.seen(t, "a", container).State == engine.Frozen &&
			!strings.Contains(in(t, "a", "grep", "^TracerPid:", "/proc/"+was[0]+"/status"), "\t0\n")
	})
	at := in(t, "a", c.tally(container)...)
	held.goOn(t)
	c.counted(t, "b", container, c.counted(t, "b", container, 1))
	if now := in(t, "a", c.tally(container)...); now != at {
		t.Errorf("it ran: %s", strings.TrimPrefix(now, at))
	}
	if err := goOn(false); err != nil {
		t.Errorf("the migration says %v", err)
	}
	c.oneCopy(t, container, true, false)
}

// TestThawedBeforeDump: a copy that is thawed before the dump must not go to the target. The container
// continues at the source, and moves at the next request.
func TestThawedBeforeDump(t *testing.T) {
	for _, s := range heldEngines() {
		t.Run(titleOf(s), func(t *testing.T) { thawedBeforeDump(t, s) })
	}
}

func thawedBeforeDump(t *testing.T, s subject) {
	const container = "thawed"
	c := conformance{s: s}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	was := counting(t, "a")
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "freeze", When: "after"}, agent.FaultPause)
	moved := moving(t, s, container, "pre-copy", stop)
	thawByHand(t, "a", was[0])
	stop.goOn(t)
	err := <-moved
	if err == nil || !strings.Contains(err.Error(), "thawed the frozen copy") {
		t.Errorf("the move: %v", err)
	}
	c.counted(t, "a", container, c.counted(t, "a", container, 1))
	if now := counting(t, "a"); !slices.Equal(now, was) {
		t.Errorf("processes %v count; they were %v", now, was)
	}
	if copies(t, "b") != 0 {
		t.Error("it runs at b as well")
	}
	c.oneCopy(t, container, false, false)
}

// TestThawedWhilePushing: thawing the copy at the source while it has remote pages does not run a second
// copy, and it is destroyed with the rest.
func TestThawedWhilePushing(t *testing.T) {
	for _, s := range heldEngines() {
		t.Run(titleOf(s), func(t *testing.T) { thawedWhilePushing(t, s) })
	}
}

func thawedWhilePushing(t *testing.T, s subject) {
	const container = "thawed"
	c := conformance{s: s}
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	was := counting(t, "a")
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "drain", When: "before"}, agent.FaultPause)
	moved := moving(t, s, container, "post-copy", stop)
	at := in(t, "a", c.tally(container)...)
	thawByHand(t, "a", was[0])
	c.counted(t, "b", container, c.counted(t, "b", container, 1))
	if now := in(t, "a", c.tally(container)...); now != at {
		t.Errorf("it ran: %s", strings.TrimPrefix(now, at))
	}
	stop.goOn(t)
	if err := <-moved; err != nil {
		t.Errorf("the move: %v", err)
	}
	c.counted(t, "b", container, c.counted(t, "b", container, 1))
	c.oneCopy(t, container, true, false)
}

// moving moves a container from a to b, and returns when the move has reached a fault.
func moving(t *testing.T, s subject, container, mode string, stop point) <-chan error {
	t.Helper()
	moved := make(chan error, 1)
	go func() {
		args := []string{"godwit", "migrate", "--wait", "--mode", mode, godwitName(s, container), "b"}
		_, err := world.lab.Exec(context.Background(), "a", args...)
		moved <- err
	}()
	eventually(t, "it comes to where it is to wait", func() bool {
		if len(moved) > 0 {
			t.Fatalf("the move was over before: %v", <-moved)
		}
		return stop.isReached()
	})
	return moved
}

// tally returns a command that shows at the source how far a frozen container has counted.
func (c conformance) tally(container string) []string {
	if c.s.name() == lxcEngine { // its own command reads it in the container, where nothing runs
		return []string{"cat", "/var/lib/lxc/" + container + "/rootfs" + lxcLog}
	}
	return c.s.logs(container)
}

// pauseAsDocker pauses a container with "docker pause" and in Godwit's freezer, which is Docker's if there
// is only cgroup version 2. The returned function ends both.
func pauseAsDocker(t *testing.T, node, name string) (unpause func()) {
	t.Helper()
	pid := inspected(t, node, name, ".State.Pid")
	in(t, node, "docker", "pause", name)
	in(t, node, "sh", "-c", `d=$(findmnt -nt cgroup2 -o TARGET | head -n 1)$(sed -n 's/^0:://p' /proc/`+pid+`/cgroup)
		if [ -e $d/cgroup.freeze ]; then echo 1 >$d/cgroup.freeze; fi`)
	return func() {
		in(t, node, "docker", "unpause", name)
		thawByHand(t, node, pid)
	}
}

// TestDockerPausedWhileUndone: "docker pause" of a container whose move is being undone remains a pause of
// Docker, and the container belongs to Docker again in every respect.
func TestDockerPausedWhileUndone(t *testing.T) {
	for what, cancelled := range map[string]agent.Fault{
		"before the freeze": {Side: "source", Step: "prepare", When: "after"},
		"after the thaw":    {Side: "source", Step: "dump", When: "after"},
	} {
		t.Run(what, func(t *testing.T) {
			name := docker(t, []string{"--restart", "unless-stopped"}, count)
			underWay := fault(t, "a", cancelled, agent.FaultPause)
			undone := fault(t, "a", agent.Fault{Side: "source", Step: "close", When: "before"},
				agent.FaultPause)
			done := begin(name, "cold")
			underWay.reached(t)
			in(t, "a", "godwit", "migration", "cancel", migrationOf(t, name))
			underWay.goOn(t)
			undone.reached(t)
			unpause := pauseAsDocker(t, "a", name)
			undone.goOn(t)
			if err := <-done; err == nil {
				t.Error("the container moved")
			}
			noRecords(t, "a", dockerEngine)
			if status := inspected(t, "a", name, ".State.Status"); status != "paused" {
				t.Errorf("status %s", status)
			}
			if policy := inspected(t, "a", name,
				".HostConfig.RestartPolicy.Name"); policy != "unless-stopped" {
				t.Errorf("restart policy %q", policy)
			}
			unpause()
			migrate(t, name, "a", "b", "cold")
		})
	}
}
