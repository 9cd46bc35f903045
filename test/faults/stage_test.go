package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// TestStageFails breaks agents and the link while a copy of a container is staged, and while a migration
// takes it over. The container keeps running, no part of the copy stays at either node, and then it can be
// staged and moved.
func TestStageFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.learnOrder(t)
	// where the client is: otherwise TCP makes it wait long after the link was lost
	w.settle(t, w.begin(t, w.at, "a"))
	for name, fail := range map[string]func(t *testing.T, from, to string){
		"the target's agent is killed": func(t *testing.T, _, to string) { w.killAgent(t, to) },
		"the source's agent is killed": func(t *testing.T, from, _ string) { w.killAgent(t, from) },
		"the source's agent ends":      func(t *testing.T, from, _ string) { w.stopAgent(t, from) },
		"the link is lost": func(t *testing.T, _, _ string) {
			w.linkDown(t)
			w.noCopies(t)
			w.linkUp(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := w.at, other(w.at)
			w.meet(t)
			w.stage(t, from, to)
			fail(t, from, to)
			w.reviveAgents(t)
			w.nothingStaged(t)
		})
	}
	for point, kind := range map[agent.Fault]agent.FaultKind{
		{Side: "source", Step: "stage", When: "after"}:   agent.FaultKill,
		{Side: "target", Step: "arrive", When: "before"}: agent.FaultFail,
		{Side: "target", Step: "arrive", When: "after"}:  agent.FaultKill,
		{Side: "source", Step: "dump", When: "after"}:    agent.FaultFail,
	} {
		t.Run(fmt.Sprintf("%s of the %s, %s", point.Step, point.Side, kind),
			func(t *testing.T) { w.takeOverFails(t, point, kind) })
	}
	w.meet(t)
	w.stage(t, w.at, other(w.at))
	from := w.at
	w.settle(t, w.precopy(t))
	if w.at == from {
		t.Error("it did not move in the end")
	}
	w.noCopies(t)
	w.clientIsHappy(t)
}

// takeOverFails makes a migration fail that starts from a copy.
func (w *world) takeOverFails(t *testing.T, point agent.Fault, kind agent.FaultKind) {
	w.meet(t)
	from, node := w.at, w.at
	if point.Side == "target" {
		node = other(w.at)
	}
	w.stage(t, from, other(from))
	w.set(t, node, point, kind)
	id := w.precopy(t)
	w.reach(t, node, point)
	if kind == agent.FaultKill {
		eventually(t, "the agent to be killed", func() error {
			if pid, err := w.lab.AgentPID(node); err != nil || pid != 0 {
				return errors.Join(err, fmt.Errorf("it is process %d", pid))
			}
			return nil
		})
	}
	w.reviveAgents(t)
	w.settle(t, id)
	w.unset(t)
	if w.at != from {
		t.Errorf("it moved to %s", w.at)
	}
	// The target's arrival is prepared while the source stages: its failure may come before the copy is
	// taken over. Then the copy is complete, and stays.
	if n, err := w.copies(t, from); err != nil || n > 0 {
		w.must(t, from, "stage", "rm", container, other(from))
	}
	w.nothingStaged(t)
}

// precopy begins a migration of the container to the other node.
func (w *world) precopy(t *testing.T) string {
	t.Helper()
	reply, err := w.agents[w.at].Migrate(t.Context(),
		&api.MigrateRequest{Container: container, Node: other(w.at), Mode: "pre-copy"})
	if err != nil {
		t.Fatal(err)
	}
	return reply.Migration
}

// stage makes a copy of the container and waits until it is complete.
func (w *world) stage(t *testing.T, from, to string) {
	t.Helper()
	w.must(t, from, "stage", container, to, "--keep-fresh", "1h")
	if n, err := w.copies(t, to); err != nil || n != 1 {
		t.Fatalf("%s has %d copies, %v", to, n, err)
	}
}

// copies counts the copies that a node has or makes.
func (w *world) copies(t *testing.T, node string) (int, error) {
	t.Helper()
	reply, err := w.agents[node].Stages(t.Context(), &api.StagesRequest{})
	if err != nil {
		return 0, err
	}
	count := 0
	for _, document := range reply.StagesJson {
		var s migration.Stage
		if err := json.Unmarshal(document, &s); err != nil {
			return 0, err
		}
		if s.State != migration.StageEnded {
			count++
		}
	}
	return count, nil
}

func (w *world) noCopies(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		eventually(t, "no copy at "+node, func() error {
			n, err := w.copies(t, node)
			if n > 0 {
				err = fmt.Errorf("there are %d", n)
			}
			return err
		})
	}
}

// nothingStaged checks that the nodes are as before, and that the container is not tracked and serves its
// client.
func (w *world) nothingStaged(t *testing.T) {
	t.Helper()
	w.noCopies(t)
	w.inOrder(t)
	pid := w.find(t, w.at, container).PID
	eventually(t, "the tracking to end", func() error {
		// The kernel marks mappings whose writes it tracks (Linux, Documentation/filesystems/proc.rst,
		// VmFlags).
		smaps, err := w.lab.Exec(t.Context(), w.at, "cat", "/proc/"+strconv.Itoa(pid)+"/smaps")
		for line := range strings.Lines(smaps) {
			if flags, is := strings.CutPrefix(line, "VmFlags:"); is && strings.Contains(flags, " uw") {
				return errors.New("it is tracked: " + line)
			}
		}
		return err
	})
	w.clientGoesOn(t)
}
