package engines

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// interference is an action of a user on a container, or on its engine, during the container's move.
type interference struct {
	name string
	// Scripts on a node, for Docker and Podman, containerd, the embedded engine and LXC: $0 is the engine,
	// $1 the container. Empty: the engine has no such command.
	cli, ctr, own, lxc string
	mends              func(t *testing.T, s subject, node string) // makes the engine work again
	// the copy on that node may have ended because of it
	ends bool
}

// script returns the script for an engine.
func (m interference) script(s subject) string {
	switch s.name() {
	case dockerEngine, podmanEngine:
		if m.name == "daemon" && s.name() == podmanEngine { // it has no daemon
			return ""
		}
		return m.cli
	case containerdEngine:
		return m.ctr
	case lxcEngine:
		return m.lxc
	}
	return m.own
}

// does returns a command that runs the script, which pgrep finds by its first words.
func (m interference) does(s subject, container string) []string {
	return []string{"sh", "-c", ": interference; " + m.script(s), s.name(), container}
}

func interferences() []interference {
	return []interference{
		{name: "stop", cli: "$0 stop $1", ends: true,
			ctr: "ctr containers label $1 containerd.io/restart.status= && ctr task kill -s USR1 $1"},
		{name: "kill", cli: "$0 kill $1", ctr: "ctr task kill -s KILL $1", ends: true},
		{name: "rm", cli: "case $0 in podman) podman rm --force --time=0 $1 ;; *) docker rm --force $1 ;; " +
			"esac",
			ctr: "godwit rm --force containerd:$1", ends: true},
		{name: "restart", cli: "$0 restart --time 1 $1",
			ctr: "ctr task rm --force $1; ctr task start --detach --null-io $1", ends: true},
		{name: "shim", ends: true, ctr: "pkill -KILL -f \"[c]ontainerd-shim-runc-v2 .*-id $1 \"",
			cli: `case $0 in podman) pkill -KILL -f "[c]onmon .* -n $1 " ;; *)
				pkill -KILL -f "[c]ontainerd-shim-runc-v2 .*$(docker ps --all --quiet --no-trunc --filter name=$1)" ;; esac`},
		{name: "daemon", cli: "kill -KILL $(cat /run/docker.pid)",
			ctr: "pkill -KILL -f '[c]ontainerd --config /dev/null'", mends: restartDaemon, ends: true},
	}
}

// cleanUp removes Podman's leftovers: Podman does not let the runtime delete a container that has lost its
// conmon.
func (m interference) cleanUp(t *testing.T, s subject, stayed bool) {
	t.Helper()
	if s.name() == podmanEngine && m.name == "shim" && stayed {
		in(t, "a", "sh", "-c", "rm -rf /run/runc/*")
	}
}

// quoted formats a command for a shell.
func quoted(command []string) string {
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = "'" + word + "'"
	}
	return strings.Join(words, " ")
}

func restartDaemon(t *testing.T, s subject, node string) {
	t.Helper()
	var err error
	if s.name() == dockerEngine {
		in(t, node, "rm", "-f", "/run/docker.pid", "/run/docker.sock")
		err = startDockerAlone(t.Context(), node)
	} else {
		in(t, node, "rm", "-f", "/run/containerd/containerd.sock")
		err = world.lab.Engines().StartContainerd(t.Context(), node)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the engine answers", func() bool { return tried(t, node, s.listing()...) == nil })
}

// TestInterference: whatever a user does with a container or with its engine, at any step of a move and on
// either side, there are never two copies of it, and none only if one was ended; and the node without it
// has nothing of it.
func TestInterference(t *testing.T) {
	points := []agent.Fault{
		{Side: "source", Step: "prepare", When: "before"}, {Side: "target", Step: "arrive", When: "after"},
		{Side: "source", Step: "dump", When: "after"}, {Side: "target", Step: "receive", When: "after"},
		{Side: "target", Step: "restore", When: "after"}, {Side: "source", Step: "destroy", When: "before"},
	}
	for _, s := range []subject{byDocker{byCommand{inDocker}}, byCommand{inPodman}, inContainerd{}} {
		for _, m := range interferences() {
			if m.script(s) == "" {
				continue
			}
			for _, point := range points {
				for _, node := range nodes() {
					// other tests cover some of the others
					if testing.Short() && (m.name != "kill" || point.Step != "dump" || node != "a") {
						continue
					}
					name := strings.Join([]string{s.name(), m.name, "on", node, point.Side, point.Step,
						point.When}, "-")
					t.Run(name, func(t *testing.T) { interfere(t, s, m, point, node) })
				}
			}
		}
	}
}

func interfere(t *testing.T, s subject, m interference, point agent.Fault, node string) {
	const container = "interfered"
	c := conformance{s: s}
	had := left(t)
	c.begins(t, container, nil, count)
	c.counted(t, "a", container, 1)
	at := map[string]string{"source": "a", "target": "b"}[point.Side]
	stop := fault(t, at, point, agent.FaultPause)
	moved := make(chan error, 1)
	const says = "/tmp/interfered-move"
	go func() {
		_, err := world.lab.Exec(context.Background(), "a", "sh",
			"-c", `godwit migrate --mode pre-copy "$1" b >"$2" 2>&1 || { cat "$2" >&2; exit 1; }`,
			"sh", godwitName(s, container), says)
		moved <- err
	}()
	eventually(t, "it comes to "+point.Step, func() bool {
		if len(moved) > 0 {
			t.Fatalf("the move was over before: %v", <-moved)
		}
		return stop.isReached()
	})
	done := make(chan error, 1)
	go func() {
		_, err := world.lab.Exec(context.Background(), node, m.does(s, container)...)
		done <- err
	}()
	eventually(t, "it is being done", func() bool { // it may wait until the move continues
		return len(done) > 0 || tried(t, node, "pgrep", "-f", "^sh -c : interference") == nil
	})
	stop.goOn(t)
	did := <-done
	if m.mends != nil {
		eventually(t, "the move is over, or says what it waits for", func() bool {
			return len(moved) > 0 || tried(t, "a", "grep", "-q", " waits: ", says) == nil
		})
		m.mends(t, s, node)
	}
	err := <-moved
	t.Logf("%s: %v; the move: %v", m.name, did, err)
	c.oneCopy(t, container, err == nil, m.ends)
	m.cleanUp(t, s, err != nil)
	if now := had; !labtest.Within(patience, func() bool { now = left(t); return now == had }) {
		t.Errorf("there were\n%s\nand are\n%s", had, now)
	}
}

// left lists the mounts of the nodes, the runtimes' state directories of containers, and the processes that
// make and hold containers.
func left(t *testing.T) (all string) {
	t.Helper()
	for _, node := range nodes() {
		all += node + ":\n" + in(t, node, "sh", "-c", `awk '{ print $5 }' /proc/self/mountinfo | sort
			find /run/runc/* /run/crun/* /run/containerd/runc/*/* /run/containerd/io.containerd.runtime.v2.task/*/* -maxdepth 0 2>/dev/null | sort
			ps -e -o comm= | grep -E '^(criu|runc|crun|conmon|godwit-runc|containerd-shim.*)$' | sort || true`) + "\n"
	}
	return all
}

// oneCopy checks that there is one copy of a container, at the node that the move reports, or none if it
// may have ended.
func (c conformance) oneCopy(t *testing.T, container string, moved, ended bool) {
	t.Helper()
	home, other := "a", "b"
	if moved {
		home, other = other, home
	}
	eventually(t, "the node that has it not has nothing of it", func() bool { return copies(t, other) == 0 })
	switch is := copies(t, home); {
	case is == 1:
		if one := c.seen(t, home, container); one.State != engine.Running {
			t.Errorf("on %s it is %s", home, one.State)
		}
	case is > 1 || !ended:
		t.Errorf("%d copies run on %s", is, home)
	}
	c.s.nothing(t, other, container)
	c.removed(container)
	c.s.nothing(t, home, container)
}

// counters matches processes of counting containers.
var counters = regexp.MustCompile(`^/bin/sh (-c i=0; while|/script)`)

// copies returns how many containers count on a node.
func copies(t *testing.T, node string) int {
	t.Helper()
	return len(counting(t, node))
}

// counting returns the counting processes of containers on a node.
func counting(t *testing.T, node string) []string {
	t.Helper()
	return countersIn(in(t, node, "ps", "-ww", "-e", "-o", "pid=,ppid=,args="))
}

// countersIn finds them in a list of processes with their parents and arguments. A child that has just been
// forked looks like its parent until it executes another program, and does not count.
func countersIn(list string) (pids []string) {
	parents := map[string]string{}
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) > 2 && counters.MatchString(strings.Join(fields[2:], " ")) {
			parents[fields[0]] = fields[1]
		}
	}
	for pid, parent := range parents {
		if _, forked := parents[parent]; !forked {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// TestCountersIn: a shell that has just forked counts once, and two shells count twice.
func TestCountersIn(t *testing.T) {
	const list = `    1     0 /sbin/init
  210     1 /bin/sh -c i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done
  340   210 /bin/sh -c i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done
  199     1 /bin/sh /script
  341   199 sleep 0.05
  342     1 sh -c ps -e
`
	if pids := countersIn(list); !slices.Equal(pids, []string{"199", "210"}) {
		t.Errorf("processes %v count; want 199 and 210", pids)
	}
}
