package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
)

// world is a lab with two nodes, one Redis in a container, and a client with one connection to it.
type world struct {
	lab     *lab.Lab
	agents  map[string]api.AgentClient
	cleanup func(func()) // at the end of the world
	id      string       // of the container
	at      string       // its node
	counter *workload.RedisCounter
	again   *workload.RedisAgain // in mode restart, instead of counter
	stop    context.CancelFunc
	order   map[string]snapshot // of a node, for each node of the container; see learnOrder
	lost    uint64              // packets on the link, so far
	broken  bool

	via         via // the container's engine
	mode        migration.Mode
	policy      string // restart policy of containers that start anew
	spill       bool   // remote pages go to disk, too
	peerTimeout string // of the agents
	content     string // hash of the container's memory
}

const container = "redis"

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, migration.Cold, soon)
}

// newWorldOf makes a world with a container, whose migrations use one mode.
func newWorldOf(t *testing.T, mode migration.Mode, peerTimeout string) *world {
	t.Helper()
	return newWorldVia(t, embedded, mode, peerTimeout)
}

// newNodes makes a world without a container.
func newNodes(t *testing.T, config lab.Config) *world {
	t.Helper()
	return newNodesOf(t, config, soon)
}

func newNodesOf(t *testing.T, config lab.Config, peerTimeout string) *world {
	t.Helper()
	w := &world{
		at: "a", cleanup: t.Cleanup, agents: map[string]api.AgentClient{}, order: map[string]snapshot{},
		mode: migration.Cold, peerTimeout: peerTimeout,
	}
	config.Name = labName(t)
	config.Nodes = max(config.Nodes, len(nodes))
	config.Program, config.NoCheck, config.AgentArgs = build(t), true, w.agentArgs()
	config.Link = lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond}
	up, err := lab.Up(t.Context(), config)
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
	for _, node := range nodes {
		w.agents[node] = w.dial(t, node)
	}
	return w
}

func labName(t *testing.T) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, strings.ToLower(strings.TrimPrefix(t.Name(), "Test")))
	return fmt.Sprintf("%.18s-%d", name, os.Getpid())
}

// dial returns a client of a node's agent that survives the agent's restarts.
func (w *world) dial(t *testing.T, node string) api.AgentClient {
	t.Helper()
	quick := grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2,
			MaxDelay: 50 * time.Millisecond},
		MinConnectTimeout: time.Second,
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(w.runDir(t, node), "agent.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quick))
	if err != nil {
		t.Fatal(err)
	}
	w.cleanup(func() { conn.Close() })
	return api.NewAgentClient(conn)
}

// build makes the tested program, once.
func build(t *testing.T) string {
	t.Helper()
	program, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// buildHelper makes godwit-lab, which is also a workload.
func buildHelper(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "godwit-lab")
	if err := labtest.GoBuild(t.Context(), program, labtest.Helper); err != nil {
		t.Fatal(err)
	}
	return program
}

var buildOnce = sync.OnceValues(func() (string, error) {
	program := filepath.Join(os.TempDir(), fmt.Sprintf("godwit-faults-%d", os.Getpid()))
	return program, labtest.GoBuild(context.Background(), program, labtest.Program)
})

// showLogs prints the agents' last output and current stacks: a migration may hang.
func (w *world) showLogs(t *testing.T) {
	for _, node := range nodes {
		if err := w.lab.DumpAgent(context.Background(), node); err != nil {
			t.Log(err) // the node may have been lost
		}
		log, err := os.ReadFile(w.lab.AgentLog(node))
		if err != nil {
			t.Log(err)
			continue
		}
		said, stacks, _ := strings.Cut(string(log), "SIGQUIT: quit")
		lines := strings.Split(said, "\n")
		t.Logf("agent of %s:\n%s", node, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		t.Logf("stacks at %s:\n%s", node, stacks)
	}
}

// loadRedis loads the image on a node.
func (w *world) loadRedis(t *testing.T, node string) {
	t.Helper()
	archive, err := labimage.Build(t.Context(), "redis", filepath.Join(lab.StateDirectory, "images"))
	if err != nil {
		t.Fatal(err)
	}
	w.must(t, node, "image", "load", archive)
}

func (w *world) startRedis(t *testing.T) {
	t.Helper()
	switch w.via {
	case embedded:
	case lxc:
		w.startLXC(t)
		return
	default:
		w.startByCommand(t)
		return
	}
	w.loadRedis(t, "a")
	if w.mode == migration.Restart {
		w.startDurableRedis(t)
		return
	}
	w.id = strings.TrimSpace(w.must(t, "a", "run", "-d", "--name", container, "redis"))
	w.askRedis(t)
}

// askRedis starts a client of the container on node a.
func (w *world) askRedis(t *testing.T) {
	t.Helper()
	if err := w.lab.Client("client", "a", lab.Link{}); err != nil {
		t.Fatal(err)
	}
	address := w.serves(t)
	var conn net.Conn
	eventually(t, "redis to answer", func() (err error) {
		conn, err = w.lab.Dial(t.Context(), "client", "tcp", address)
		return err
	})
	w.counter = workload.NewRedisCounter(conn)
	if w.mode != migration.Cold {
		if err := w.counter.Fill(preCopied); err != nil {
			t.Fatal(err)
		}
		w.content = w.hashContent(t)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	t.Cleanup(stop)
	w.counter.Start(ctx, 100)
}

// clientGoesOn checks that the client gets answers again, and that they are right.
func (w *world) clientGoesOn(t *testing.T) {
	t.Helper()
	if w.again != nil {
		w.clientsGoOn(t)
		return
	}
	until := w.counter.Answers() + 10
	eventually(t, "the client to get answers", func() error {
		if have := w.counter.Answers(); have < until {
			return fmt.Errorf("%d of %d answers", have, until)
		}
		return nil
	})
	if seen := w.counter.Seen(); seen.Errors+seen.Lost+seen.Doubled > 0 || !seen.SameConnection {
		t.Errorf("the client saw %+v", seen)
	}
}

// clientIsHappy checks, at the end, that the client lost nothing and stayed connected the whole time.
func (w *world) clientIsHappy(t *testing.T) {
	t.Helper()
	w.stop()
	if w.again != nil {
		w.lostNothing(t, w.again.Wait())
		return
	}
	counted, err := w.counter.Result(2 * time.Minute)
	if err != nil || counted.Errors+counted.Lost+counted.Doubled > 0 || !counted.SameConnection {
		t.Errorf("the client saw %+v, error %v", counted, err)
	}
}
