package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
)

// world is a lab with two nodes, one Redis in a container, and a client with one connection to it.
type world struct {
	lab     *lab.Lab
	program string
	id      string // of the container
	at      string // the node on which it runs
	counter *workload.RedisCounter
	stop    context.CancelFunc
	broken  bool
}

const container = "redis"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{program: build(t), at: "a"}
	name := fmt.Sprintf("faults-%d", os.Getpid())
	up, err := lab.Up(t.Context(), lab.Config{
		Name: name, Nodes: 2, Program: w.program, NoCheck: true,
		Link: lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.lab = up
	t.Cleanup(func() {
		if t.Failed() {
			w.showLogs(t)
		}
		if err := up.Down(); err != nil {
			t.Error(err)
		}
	})
	w.startRedis(t)
	return w
}

// build makes the program that is tested.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "godwit")
	command := exec.Command("go", "build", "-o", program, "github.com/godwit/godwit/cmd/godwit")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

func (w *world) showLogs(t *testing.T) {
	for _, node := range []string{"a", "b"} {
		log, err := os.ReadFile(w.lab.AgentLog(node))
		if err != nil {
			t.Log(err)
			continue
		}
		lines := strings.Split(string(log), "\n")
		t.Logf("agent of %s:\n%s", node, strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
}

// godwit runs the program in a node.
func (w *world) godwit(ctx context.Context, node string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return w.lab.Exec(ctx, node, append([]string{w.program}, args...)...)
}

func (w *world) must(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := w.godwit(t.Context(), node, args...)
	if err != nil {
		t.Fatalf("godwit %s on %s: %v\n%s", strings.Join(args, " "), node, err, out)
	}
	return out
}

func (w *world) startRedis(t *testing.T) {
	t.Helper()
	archive, err := labimage.Build(t.Context(), "redis", "/var/lib/godwit-lab/images")
	if err != nil {
		t.Fatal(err)
	}
	w.must(t, "a", "image", "load", archive)
	w.id = strings.TrimSpace(w.must(t, "a", "run", "-d", "--name", container, "redis"))
	if err := w.lab.Client("client", "a", lab.Link{}); err != nil {
		t.Fatal(err)
	}
	address := w.inspect(t, "a").Definition.Network.Address.String() + ":6379"
	var conn net.Conn
	eventually(t, "redis to answer", func() (err error) {
		conn, err = w.lab.Dial(t.Context(), "client", "tcp", address)
		return err
	})
	w.counter = workload.NewRedisCounter(conn)
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	t.Cleanup(stop)
	w.counter.Start(ctx, 100)
}

func (w *world) inspect(t *testing.T, node string) engine.Container {
	t.Helper()
	var found engine.Container
	if err := json.Unmarshal([]byte(w.must(t, node, "inspect", container)), &found); err != nil {
		t.Fatal(err)
	}
	return found
}

func (w *world) restartAgent(t *testing.T, node string, args ...string) {
	t.Helper()
	if err := w.lab.StopAgent(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := w.lab.StartAgent(t.Context(), node, append(args, "--debug")...); err != nil {
		t.Fatal(err)
	}
}

func (w *world) killAgent(t *testing.T, node string) {
	t.Helper()
	if err := w.lab.KillAgent(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// reviveAgents starts agents that were killed, without faults.
func (w *world) reviveAgents(t *testing.T) {
	t.Helper()
	for _, node := range []string{"a", "b"} {
		pid, err := w.lab.AgentPID(node)
		if err != nil {
			t.Fatal(err)
		}
		if pid != 0 {
			continue
		}
		if err := w.lab.StartAgent(t.Context(), node, "--debug"); err != nil {
			t.Fatal(err)
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

// waitUnreachable waits until a node has noticed that it cannot reach the other.
func (w *world) waitUnreachable(t *testing.T, from, to string) {
	t.Helper()
	eventually(t, "the broken link to be noticed", func() error {
		out, err := w.godwit(t.Context(), from, "nodes", "--measure=false", "--json")
		if err != nil {
			return err
		}
		var nodes []struct {
			Name      string
			Reachable bool
		}
		if err := json.Unmarshal([]byte(out), &nodes); err != nil {
			return err
		}
		for _, node := range nodes {
			if node.Name == to && node.Reachable {
				return errors.New(to + " is still reachable")
			}
		}
		return nil
	})
}

// begin starts a migration and returns its id.
func (w *world) begin(t *testing.T, from, to string) string {
	t.Helper()
	var id string
	eventually(t, "the migration to begin", func() error {
		out, err := w.godwit(t.Context(), from, "migrate", "--detach", container, to)
		id = strings.TrimSpace(out)
		return err
	})
	return id
}

// report reads a node's report of a migration; false if it has none.
func (w *world) report(t *testing.T, node, id string) (migration.Report, bool) {
	t.Helper()
	var found migration.Report
	out, err := w.godwit(t.Context(), node, "migration", "show", id, "--json")
	if err != nil {
		return found, false
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	return found, true
}

// settle waits until the migration has ended on both nodes, and exactly one has the container, running.
func (w *world) settle(t *testing.T, id string) {
	t.Helper()
	w.broken = true
	eventually(t, "the migration to end on both nodes", func() error {
		for _, node := range []string{"a", "b"} {
			if r, known := w.report(t, node, id); known && (r.Result == migration.ResultRuns || r.Result == migration.ResultDoubt) {
				return fmt.Errorf("on %s it is %s", node, r.Result)
			}
		}
		return nil
	})
	eventually(t, "exactly one node to run the container", func() error {
		var running []string
		for _, node := range []string{"a", "b"} {
			var list []engine.Container
			out, err := w.godwit(t.Context(), node, "ps", "--all", "--json")
			if err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(out), &list); err != nil {
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
	})
	w.broken = false
}

// nothingLeft checks that only the node with the container has anything of it.
func (w *world) nothingLeft(t *testing.T) {
	t.Helper()
	root, err := w.lab.Root(other(w.at))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing to be left over on "+other(w.at), func() error {
		for _, path := range []string{
			"run/godwit/containers/" + w.id, "run/godwit/netns/" + w.id, "run/godwit/runc/" + w.id, "var/lib/godwit/containers/" + w.id,
		} {
			if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
				return fmt.Errorf("%s is left", path)
			}
		}
		return nil
	})
	for _, node := range []string{"a", "b"} {
		eventually(t, "no memory for images to be left on "+node, func() error { return w.noMounts(node) })
	}
}

// noMounts checks that no migration has left a mount in a node.
func (w *world) noMounts(node string) error {
	pid, err := w.lab.PID(node)
	if err != nil {
		return err
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/migrations/") || strings.Contains(line, "/images tmpfs") ||
			node != w.at && strings.Contains(line, w.id) {
			return fmt.Errorf("mount left: %s", line)
		}
	}
	return nil
}

// reportTells checks that the source's report says what happened.
func (w *world) reportTells(t *testing.T, f fault, from, id string) {
	t.Helper()
	r, known := w.report(t, from, id)
	if !known {
		if f.step != "examine" { // Nothing was begun, so nothing was journaled.
			t.Errorf("the source knows nothing of migration %s", id)
		}
		return
	}
	moved := w.at != from
	if moved != (r.Result == migration.Moved) {
		t.Errorf("the container is on %s, and the report of %s says %s", w.at, from, r.Result)
	}
	if !moved && (r.Error == nil || *r.Error == "") {
		t.Error("it did not move, and the report does not say why")
	}
}

// clientGoesOn checks that the client gets answers again.
func (w *world) clientGoesOn(t *testing.T) {
	t.Helper()
	until := w.counter.Answers() + 20
	eventually(t, "the client to get answers", func() error {
		if have := w.counter.Answers(); have < until {
			return fmt.Errorf("%d of %d answers", have, until)
		}
		return nil
	})
}

// clientIsHappy checks, at the end, that the client lost nothing and stayed connected through all of it.
func (w *world) clientIsHappy(t *testing.T) {
	t.Helper()
	w.stop()
	counted, err := w.counter.Result(30 * time.Second)
	if err != nil || counted.Errors+counted.Lost+counted.Doubled > 0 || !counted.SameConnection {
		t.Errorf("the client saw %+v, error %v", counted, err)
	}
}
