package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// agentArgs enable faults in the agents.
var agentArgs = []string{"--debug", "--faults"}

// Values of --peer-timeout. Agents that should notice a broken link do so soon. Others are patient: on a
// busy machine an agent may be silent for seconds, and that would then be the failure.
const (
	soon    = "4s"
	patient = "30s"
)

// nodes are the nodes of every world.
var nodes = []string{"a", "b"}

// godwit runs the program in a node.
func (w *world) godwit(ctx context.Context, node string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return w.lab.Exec(ctx, node, append([]string{"godwit"}, args...)...)
}

func (w *world) must(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := w.godwit(t.Context(), node, args...)
	if err != nil {
		t.Fatalf("godwit %s on %s: %v\n%s", strings.Join(args, " "), node, err, out)
	}
	return out
}

// runDir returns a node's run directory, as a path for this process.
func (w *world) runDir(t *testing.T, node string) string {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "run/godwit")
}

// set sets a fault at a node.
func (w *world) set(t *testing.T, node string, f agent.Fault, kind agent.FaultKind) {
	t.Helper()
	if err := f.Set(w.runDir(t, node), kind); err != nil {
		t.Fatal(err)
	}
}

// unset removes all faults that did not happen.
func (w *world) unset(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		if err := os.RemoveAll(filepath.Join(w.runDir(t, node), "faults")); err != nil {
			t.Fatal(err)
		}
	}
}

// reach waits until a step with a fault is reached.
func (w *world) reach(t *testing.T, node string, f agent.Fault) {
	t.Helper()
	file := f.Reached(w.runDir(t, node))
	eventually(t, "step "+f.Step+" of the "+f.Side+" to be reached", func() error {
		_, err := os.Stat(file)
		return err
	})
}

// goOn lets a paused step continue.
func (w *world) goOn(t *testing.T, node string, f agent.Fault) {
	t.Helper()
	if err := os.Remove(f.Reached(w.runDir(t, node))); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func (w *world) killAgent(t *testing.T, node string) {
	t.Helper()
	if err := w.lab.KillAgent(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func (w *world) agentArgs() []string {
	return append(slices.Clone(agentArgs), "--peer-timeout", w.peerTimeout)
}

func (w *world) stopAgent(t *testing.T, node string) {
	t.Helper()
	if err := w.lab.StopAgent(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func (w *world) startAgent(t *testing.T, node string, env ...string) {
	t.Helper()
	if err := w.lab.StartAgentWith(t.Context(), node, env, w.agentArgs()...); err != nil {
		t.Fatal(err)
	}
}

// reviveAgents starts agents that are not running.
func (w *world) reviveAgents(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		pid, err := w.lab.AgentPID(node)
		if err != nil {
			t.Fatal(err)
		}
		if pid == 0 {
			w.startAgent(t, node)
		}
	}
}

func (w *world) linkDown(t *testing.T) {
	t.Helper()
	if err := w.lab.LinkDown("a", "b"); err != nil {
		t.Fatal(err)
	}
}

func (w *world) linkUp(t *testing.T) {
	t.Helper()
	if err := w.lab.LinkUp("a", "b"); err != nil {
		t.Fatal(err)
	}
}

// waitLost waits until a packet was lost on the broken link.
func (w *world) waitLost(t *testing.T) {
	t.Helper()
	eventually(t, "a packet to be lost", func() error {
		there, back, err := w.lab.LinkCounters("a", "b")
		if lost := there.DroppedDown + back.DroppedDown; err == nil && lost <= w.lost {
			err = errors.New("none was")
		} else {
			w.lost = lost
		}
		return err
	})
}

// reaches reports whether a node reaches the other one.
func (w *world) reaches(ctx context.Context, node string) (bool, error) {
	reply, err := w.agents[node].Nodes(ctx, &api.NodesRequest{})
	if err != nil {
		return false, err
	}
	for _, known := range reply.Nodes {
		if known.Name == other(node) {
			return known.Reachable, nil
		}
	}
	return false, nil
}

// meet waits until both nodes reach each other.
func (w *world) meet(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		eventually(t, node+" to reach the other node", func() error {
			reaches, err := w.reaches(t.Context(), node)
			if err == nil && !reaches {
				err = errors.New("it does not")
			}
			return err
		})
	}
}

// waitNoticed waits until both agents have noticed that the link is broken, even in the migration.
func (w *world) waitNoticed(t *testing.T, from, id string) {
	t.Helper()
	eventually(t, "the broken link to be noticed", func() error {
		for _, node := range nodes {
			if reaches, err := w.reaches(t.Context(), node); err != nil || reaches {
				return errors.Join(err, fmt.Errorf("%s still reaches the other", node))
			}
		}
		if r, known := w.report(t, from, id); known && r.Result == migration.ResultRuns && !committed(r) {
			return errors.New("the migration goes on")
		}
		return nil
	})
}

// committed reports whether the source knows that the container runs at the target.
func committed(r migration.Report) bool { return r.HandoffSeconds > 0 }

// begin starts a migration and returns its id.
func (w *world) begin(t *testing.T, from, to string) string {
	t.Helper()
	return w.beginOf(t, container, from, to)
}

func (w *world) beginOf(t *testing.T, name, from, to string) string {
	t.Helper()
	request := &api.MigrateRequest{Container: name, Node: to, Mode: string(w.mode), Spill: w.spill}
	if w.mode == migration.Hybrid { // nothing fits, so memory follows
		request.DowntimeTargetSeconds, request.MaxRounds = 0.001, 2
	}
	reply, err := w.agents[from].Migrate(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return reply.Migration
}

// cancel is a user's request. The answer that it is too late is correct after the commit.
func (w *world) cancel(t *testing.T, node, id string) {
	t.Helper()
	_, err := w.agents[node].Cancel(t.Context(), &api.MigrationRequest{Migration: id})
	if err != nil && !strings.Contains(err.Error(), "too late") &&
		!strings.Contains(err.Error(), "has ended") {
		t.Error(err)
	}
}

// report reads a node's report of a migration; false if the node does not know it.
func (w *world) report(t *testing.T, node, id string) (migration.Report, bool) {
	t.Helper()
	stream, err := w.agents[node].Migrations(t.Context(), &api.MigrationsRequest{})
	for err == nil {
		var reply *api.MigrationsReply
		if reply, err = stream.Recv(); err != nil {
			break
		}
		var r migration.Report
		if err := json.Unmarshal(reply.ReportJson, &r); err != nil {
			t.Fatal(err)
		}
		if r.Migration == id {
			return r, true
		}
	}
	if status.Code(err) == codes.Unavailable { // it is still starting
		return migration.Report{Result: migration.ResultRuns}, true
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return migration.Report{}, false
}

// containers lists a node's containers.
func (w *world) containers(ctx context.Context, node string) ([]engine.Container, error) {
	reply, err := w.agents[node].List(ctx, &api.ListRequest{All: true})
	if err != nil {
		return nil, err
	}
	list := make([]engine.Container, len(reply.ContainersJson))
	for i, document := range reply.ContainersJson {
		if err := json.Unmarshal(document, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// find finds a container by its name.
func (w *world) find(t *testing.T, node, name string) engine.Container {
	t.Helper()
	list, err := w.containers(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Definition.Name == name {
			return c
		}
	}
	t.Fatalf("%s has no container %s, but %+v", node, name, list)
	return engine.Container{}
}

// settle waits until the migration has ended on both nodes, and exactly one has the container, running.
func (w *world) settle(t *testing.T, id string) {
	t.Helper()
	eventually(t, "the migration to end on both nodes", func() error {
		for _, node := range nodes {
			if r, known := w.report(t, node, id); known &&
				(r.Result == migration.ResultRuns || r.Result == migration.ResultDoubt) {
				return fmt.Errorf("on %s it is %s", node, r.Result)
			}
		}
		return nil
	})
	eventually(t, "exactly one node to run the container", w.runsOnce)
}

// runsOnce finds the node that runs the container.
func (w *world) runsOnce() error {
	var running []string
	for _, node := range nodes {
		list, err := w.containers(context.Background(), node)
		if err != nil {
			return err
		}
		for _, c := range list {
			if c.Definition.ID != w.id {
				continue
			}
			if c.State != engine.Running {
				return fmt.Errorf("on %s it is %s", node, c.State)
			}
			running = append(running, node)
		}
	}
	if len(running) != 1 {
		return fmt.Errorf("it runs on %v", running)
	}
	w.at = running[0]
	return nil
}

// reportsTell checks that the reports of both nodes describe what happened.
func (w *world) reportsTell(t *testing.T, f fault, from, to, id string) {
	t.Helper()
	moved := w.at != from
	if wanted, sure := f.moves(); sure && moved != wanted {
		t.Errorf("moved: %t, want %t", moved, wanted)
	}
	there, known := w.report(t, from, id)
	if !known {
		if f.step != "examine" { // Nothing had begun, so nothing was journaled.
			t.Errorf("the source knows nothing of migration %s", id)
		}
		return
	}
	w.reportTells(t, from, there, moved)
	if r, known := w.report(t, to, id); f.forgets() {
		t.Logf("the target, which has forgotten it, says %q (known: %t)", r.Result, known)
	} else if known {
		w.reportTells(t, to, r, moved)
	} else if moved {
		t.Errorf("the target knows nothing of migration %s", id)
	}
	if words := f.words(); !moved && there.Error != nil && !containsAny(*there.Error, words) {
		t.Errorf("the source's report says %q, want one of %q in it", *there.Error, words)
	}
}

func (w *world) reportTells(t *testing.T, node string, r migration.Report, moved bool) {
	t.Helper()
	if moved != (r.Result == migration.Moved) {
		t.Errorf("the container moved: %t; the report of %s says %s", moved, node, r.Result)
	}
	if !moved && (r.Error == nil || *r.Error == "") {
		t.Errorf("it did not move, and the report of %s does not say why", node)
	}
	if moved && r.Error != nil {
		t.Errorf("it moved, and the report of %s has an error: %s", node, *r.Error)
	}
}

func containsAny(text string, words []string) bool {
	for _, word := range words {
		if strings.Contains(text, word) {
			return true
		}
	}
	return len(words) == 0
}

// patience bounds all waits.
const patience = 2 * time.Minute

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	var err error
	if !labtest.Within(patience, func() bool { err = condition(); return err == nil }) {
		t.Fatalf("waited too long for %s: %v", what, err)
	}
}
