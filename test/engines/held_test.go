package engines

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// thaws are scripts by which people have an engine let a container go on that they take for a paused one. The
// last one does what an engine does that has the freezer which Godwit uses.
func thaws(s subject, container string, pids []string) []string {
	byHand := `d=$(findmnt -nt cgroup2 -o TARGET | head -n 1)
d=$d$(sed -n 's/^0:://p' /proc/` + pids[0] + `/cgroup)
echo 0 >$d/cgroup.freeze`
	pause, resume := "", ""
	switch is := s.name(); is {
	case dockerEngine, podmanEngine:
		pause, resume = is+" pause "+container, is+" unpause "+container
	case containerdEngine:
		pause, resume = "ctr task pause "+container, "ctr task resume "+container
	case lxcEngine:
		pause, resume = "lxc-freeze -n "+container, "lxc-unfreeze -n "+container
	default:
		runc := "runc --root /run/godwit/runc "
		pause, resume = runc+"pause $(ls /run/godwit/runc)", runc+"resume $(ls /run/godwit/runc)"
	}
	return []string{pause + "; " + resume, byHand}
}

// kills is a script by which people end a container that they take for a running one.
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

// heldEngines are the engines of which that is tried: to come into doubt takes more than ten seconds each
// time.
func heldEngines() []subject {
	if testing.Short() {
		return []subject{byDocker{byCommand{inDocker}}, inContainerd{}}
	}
	return []subject{
		embedded{}, byDocker{byCommand{inDocker}}, byPodman{byCommand{inPodman}}, inContainerd{}, inLXC{},
	}
}

// TestHeldInDoubt: while nobody knows yet where a container runs, no process of the copy at its source runs
// an instruction, whoever thaws it; who kills it takes nothing with it that is needed.
func TestHeldInDoubt(t *testing.T) {
	for _, s := range heldEngines() {
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
	tally := c.s.logs(container)
	if s.name() == lxcEngine { // its own reads it in the container, where nothing runs
		tally = []string{"cat", "/var/lib/lxc/" + container + "/rootfs" + lxcLog}
	}
	at := in(t, "a", tally...)
	for _, script := range thaws(s, container, frozen) {
		t.Logf("%s: %v", script, tried(t, "a", "sh", "-c", script))
	}
	eventually(t, "it is frozen again", func() bool {
		return c.seen(t, "a", container).State == engine.Frozen
	})
	if now := in(t, "a", tally...); now != at {
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
	if killed { // as somebody has asked for
		eventually(t, "it has ended", func() bool { return copies(t, "a") == 0 })
		startsAgain(t, s, container)
	} else {
		c.counted(t, "a", container, c.counted(t, "a", container, 1))
	}
	c.oneCopy(t, container, false, false)
}
