package engines

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// tripsVariable is how often TestThereAndBack moves each container there and back; make soak-engines sets
// it.
const tripsVariable = "GODWIT_ENGINES_TRIPS"

// Allowed growth after many moves: the agents' memory, whatever the number, and for each move its journal
// and its report.
const (
	memoryGrowth  = 32 << 20
	journalGrowth = 64 << 10
)

// briefly is the engine of the short form's trip. With connections a minute passes until all traces of them
// are gone, and the conformance suite also checks what each engine leaves.
const briefly = "containerd"

// TestThereAndBack moves a container of each engine there and back again and again, with connections if the
// engine keeps them. In the end nothing of that is left in the engine, the kernel, or on disk, on either
// node.
func TestThereAndBack(t *testing.T) {
	trips := 2
	if told := os.Getenv(tripsVariable); told != "" {
		number, err := strconv.Atoi(told)
		if err != nil || number < 1 {
			t.Fatalf("%s=%s: must be a number from 1 on", tripsVariable, told)
		}
		trips = number
	}
	if testing.Short() {
		trips = 1
	}
	for _, s := range subjects() {
		if testing.Short() && titleOf(s) != briefly {
			continue
		}
		t.Run(titleOf(s), func(t *testing.T) {
			var asked []string
			if serving, is := s.(server); is {
				makeClients(t)
				asked = serving.serves(t)
			}
			thereAndBack(t, s, asked, 1) // lasting objects exist from then on
			before := map[string]state{}
			for _, node := range nodes() {
				before[node] = stateOf(t, s, node)
			}
			thereAndBack(t, s, asked, trips)
			for _, node := range nodes() {
				before[node].unchanged(t, s, node, 2*trips)
			}
		})
	}
}

// thereAndBack makes a container, moves it, and removes it.
func thereAndBack(t *testing.T, s subject, asked []string, trips int) {
	t.Helper()
	const container = "tripper"
	c := conformance{s: s}
	c.begins(t, container, asked, echo)
	move := func() {
		for trip := range trips {
			for _, to := range []string{"b", "a"} {
				from := map[string]string{"a": "b", "b": "a"}[to]
				if err := c.migrate(t, container, from, to,
					[]string{"pre-copy", "cold", "hybrid", "post-copy"}[trip%4]); err != nil {
					t.Fatalf("trip %d: %v", trip+1, err)
				}
			}
		}
	}
	if serving, is := s.(server); is {
		one := talk(t, clientMachine, serving.address(t, container))
		t.Logf("%d trips; the client waited %v at most", trips, whileTalking(t, one, move))
		_ = one.conn.Close()
	} else {
		move()
	}
	c.counted(t, "a", container, 1)
	c.removed(container)
	for _, node := range nodes() {
		s.nothing(t, node, container)
	}
}

// state is what a node has, and how much of it.
type state struct {
	view   []string
	disk   map[string]int64 // bytes below each directory of the agent's state
	memory int64            // of the agent
}

func stateOf(t *testing.T, s subject, node string) state {
	t.Helper()
	var v []string
	// nft 1.0.6 aborts as long as there are flows of a container that has moved
	eventually(t, "what "+node+" has can be listed", func() bool {
		var err error
		v, err = viewOf(s, node)
		return err == nil
	})
	return state{v, diskOf(t, node), memoryOf(t, node)}
}

// viewOf returns the view of labtest.View, and the engine's lists.
func viewOf(s subject, node string) ([]string, error) {
	v, err := labtest.View(context.Background(), world.lab, node,
		"run/godwit/*/*", "run/netns/*", "run/docker/netns/*", "var/lib/godwit/*", "var/lib/godwit/*/*",
		"var/lib/godwit/engines/*/*",
		"usr/share/containers/oci/hooks.d/*", "etc/containers/*/*", "var/lib/lxc/*")
	if err != nil {
		return nil, err
	}
	// reports of earlier migrations
	v = slices.DeleteFunc(v,
		func(line string) bool { return strings.Contains(line, "/var/lib/godwit/migrations/") })
	for _, command := range listings(s) {
		out, err := world.lab.Exec(context.Background(), node, command...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			v = append(v, strings.Join(command, " ")+": "+strings.TrimSpace(line))
		}
	}
	return v, nil
}

// listings returns the engine's commands for lists.
func listings(s subject) [][]string {
	switch s.name() {
	case dockerEngine, podmanEngine:
		all := [][]string{{s.name(), "ps", "--all", "--quiet"}}
		for _, what := range []string{"image", "volume", "network"} {
			all = append(all, []string{s.name(), what, "ls", "--quiet"})
		}
		return all
	case containerdEngine:
		var all [][]string
		for _, what := range []string{"containers", "tasks", "images", "leases", "content"} {
			all = append(all, []string{"ctr", what, "ls", "--quiet"})
		}
		return append(all, []string{"ctr", "snapshots", "ls"})
	case lxcEngine:
		return [][]string{{"lxc-ls"}}
	}
	return [][]string{{"godwit", "ps", "--all"}, {"godwit", "image", "ls"}, {"godwit", "volume", "ls"}}
}

// diskOf returns the bytes below each directory of an agent's state, including those of the engines in a
// lab.
func diskOf(t *testing.T, node string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	for line := range strings.Lines(in(t, node, "du", "--block-size=1", "--max-depth=1", "--one-file-system",
		"/var/lib/godwit")) {
		var size int64
		var path string
		if _, err := fmt.Sscan(line, &size, &path); err != nil {
			t.Fatalf("du says %q: %v", line, err)
		}
		sizes[filepath.Base(path)] = size
	}
	return sizes
}

func memoryOf(t *testing.T, node string) int64 {
	t.Helper()
	pid, err := world.lab.AgentPID(node)
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kibibytes int64
	_, after, _ := strings.Cut(string(status), "RssAnon:")
	if _, err := fmt.Sscan(after, &kibibytes); err != nil {
		t.Fatal(err)
	}
	return kibibytes << 10
}

// unchanged checks that a node has no more than before, after so many moves.
func (was state) unchanged(t *testing.T, s subject, node string, moves int) {
	t.Helper()
	var left []string
	labtest.Within(patience, func() bool { // some of it goes away a moment after its container
		now, err := viewOf(s, node)
		if err != nil {
			left = []string{err.Error()}
			return false
		}
		left = slices.DeleteFunc(now, func(line string) bool { return slices.Contains(was.view, line) })
		return len(left) == 0
	})
	if len(left) > 0 {
		t.Errorf("left on %s: %q", node, left)
	}
	for directory, size := range diskOf(t, node) {
		allowed := int64(moves) * journalGrowth
		if grown := size - was.disk[directory]; grown > allowed {
			t.Errorf("%s of %s grew by %d bytes in %d moves, want at most %d", directory, node, grown, moves,
				allowed)
		}
	}
	memory := memoryOf(t, node)
	t.Logf("%s: the agent's memory was %d KiB, is %d KiB", node, was.memory>>10, memory>>10)
	if memory > was.memory+memoryGrowth {
		t.Errorf("the agent of %s has grown from %d to %d bytes", node, was.memory, memory)
	}
}
