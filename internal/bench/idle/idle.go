package idle

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

const (
	// Name is the name of the benchmark.
	Name = "idle"
	// The processor time per second: of the agent, of the process that encrypts containers' packets if the
	// kernel does not, and of Docker (with its containerd).
	metricAgentBusy  = "agent_processor_ratio"
	metricDeviceBusy = "encryption_processor_ratio"
	metricDockerBusy = "docker_processor_ratio"
	metricHello      = "hello_bytes" // of a hello and its answer, mean of an interval
	metricUnanswered = "unanswered_hellos_ratio"
	metricAgentHeld  = "agent_memory_bytes"
	idleLimit        = 0.02 // processors
)

// Config configures the suite idle.
type Config struct {
	Lab        string // name of the lab; an existing one from a crash is taken down
	Agent      string // another godwit program, whose agent is measured first; empty: none
	ImageCache string // see package lab/image
	Containers int
	Peers      int
	Quick      bool
	Progress   func(string)
}

// MaxPeers leaves half of the pool to the homes of their guests.
const MaxPeers = idleHomes - 1

func (c Config) validate() error {
	if c.Containers < 0 || c.Peers < 0 || c.Peers > MaxPeers {
		return fmt.Errorf("%d containers, %d other nodes: neither may be negative, and at most %d nodes",
			c.Containers, c.Peers, MaxPeers)
	}
	return testbed.NeedRoot()
}

// timing returns how long an agent may settle, and the number and length of the intervals that are measured
// then.
func (c Config) timing() (settle time.Duration, intervals int, interval time.Duration) {
	if c.Quick {
		return 6 * time.Second, 3, 3 * time.Second
	}
	return 30 * time.Second, 18, 10 * time.Second
}

// Run measures the cost of an agent that has containers of Docker and other nodes to greet, but no work.
func Run(ctx context.Context, config Config) (result results.Result, err error) {
	if err := config.validate(); err != nil {
		return results.Result{}, err
	}
	shared := testbed.Config{Lab: config.Lab, ImageCache: config.ImageCache, Progress: config.Progress}
	s := &testbed.Suite{Config: shared, Began: time.Now()}
	result = results.Result{Suite: Name, Started: s.Began.UTC(), Rows: []results.Row{},
		Asked: []results.Asked{}}
	if result.Host, err = s.Prepare(); err != nil {
		return result, err
	}
	now, err := lab.FindProgram("")
	if err != nil {
		return result, err
	}
	programs := []string{now}
	if config.Agent != "" {
		programs = []string{config.Agent, now}
	}
	workload, way := fmt.Sprintf("%d containers, %d other nodes", config.Containers, config.Peers), ""
	for _, program := range programs {
		if way, err = versionOf(ctx, program); err != nil {
			return result, err
		}
		if program != now {
			way += " (--agent)"
		}
		s.Say("%s", way)
		one := &results.Series{Workload: workload, Link: testbed.LinkFast, Way: way}
		if err := idle(ctx, s, config, program, one); err != nil {
			return result, fmt.Errorf("%s: %w", way, err)
		}
		result.Rows = append(result.Rows, one.Rows()...)
	}
	if row := results.Find(result.Rows, workload, testbed.LinkFast, way, metricAgentBusy); row != nil {
		result.Asked = append(result.Asked, results.Asked{
			What: "an idle agent takes less than 2 % of a processor", Way: way, Unit: "ratio",
			Limit: idleLimit, Value: *row.Median, Met: *row.Median <= idleLimit,
		})
	}
	return result, nil
}

// versionOf asks a program for its version.
func versionOf(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", program, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// idle measures one program's agent, in a lab of its own: the agent is on node a, and the simulated nodes
// are on node b.
func idle(ctx context.Context, s *testbed.Suite, config Config, program string,
	to *results.Series) (err error) {
	if err := lab.Down(config.Lab); err != nil && !errors.Is(err, lab.ErrNoLab) {
		return fmt.Errorf("what an earlier benchmark left: %w", err)
	}
	link, err := testbed.ParseLink(testbed.LinkFast)
	if err != nil {
		return err
	}
	up, err := lab.Up(ctx, lab.Config{
		Name: config.Lab, Nodes: len(testbed.Nodes), Link: link, Program: program, Bare: true, NoCheck: true,
	})
	if err != nil {
		return err
	}
	s.Bed.Lab = up
	defer func() { err = errors.Join(err, up.Down()) }()
	if err := startIdle(ctx, s, config.Containers); err != nil {
		return err
	}
	peers, err := startIdlePeers(ctx, s, config.Peers, config.Containers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peers.stop()) }()
	s.Say("%d containers and %d other nodes are there", config.Containers, config.Peers)
	return measureIdle(ctx, s, config, peers, to)
}

// startIdle starts Docker, containers that sleep, and the agent.
func startIdle(ctx context.Context, s *testbed.Suite, containers int) error {
	archive, err := labimage.Build(ctx, "busybox", s.Config.ImageCache)
	if err != nil {
		return err
	}
	if err := s.Bed.Lab.Engines().StartDocker(ctx, testbed.Nodes[0]); err != nil {
		return err
	}
	image, err := moves.LoadImage(ctx, s.Bed, testbed.Nodes[0], "docker", archive)
	if err != nil {
		return err
	}
	for n := range containers {
		name := fmt.Sprintf("idle-%d", n+1)
		run := []string{"docker", "run", "--detach", "--name", name, image, "/usr/bin/sleep", "1000000"}
		if _, err := s.Bed.Exec(ctx, testbed.Nodes[0], run...); err != nil {
			return err
		}
	}
	address, err := s.Bed.Lab.Address(testbed.Nodes[0])
	if err == nil {
		found := []string{testbed.Program, "node", "init", "--name", testbed.Nodes[0], "--address",
			address.String()}
		_, err = s.Bed.Exec(ctx, testbed.Nodes[0], found...)
	}
	if err != nil {
		return err
	}
	return s.Bed.Lab.StartAgent(ctx, testbed.Nodes[0])
}

// idlePeers is the process of the simulated nodes.
type idlePeers struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	dir string
}

// startIdlePeers makes the simulated nodes join. They are a process of this program in the network of node
// b, whatever program the lab has.
func startIdlePeers(ctx context.Context, s *testbed.Suite, count, containers int) (*idlePeers, error) {
	config := idlePeersConfig{Server: testbed.Nodes[0], Containers: containers}
	server, err := s.Bed.Lab.Address(testbed.Nodes[0])
	if err != nil {
		return nil, err
	}
	config.Address = net.JoinHostPort(server.String(), strconv.Itoa(idlePeerPort))
	if err := routeIdle(ctx, s, count); err != nil {
		return nil, err
	}
	for n := range count {
		config.Addresses = append(config.Addresses, idleAddress(n).String())
		token, err := s.Bed.Exec(ctx, testbed.Nodes[0], testbed.Program, "node", "token")
		if err != nil {
			return nil, err
		}
		lines := strings.Fields(token)
		config.Tokens = append(config.Tokens, lines[len(lines)-1])
	}
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p := &idlePeers{cmd: exec.CommandContext(ctx, own, "bench", "idle-peers")}
	if p.dir, err = os.MkdirTemp("", "godwit-bench-"); err != nil {
		return nil, err
	}
	config.Dir = p.dir
	if err := p.start(s.Bed.Lab, config); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// idleAddress returns the address of a simulated node, in a network for measurements (RFC 2544).
func idleAddress(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 1, byte(n + 1)}) }

// routeIdle gives node b the addresses of the simulated nodes.
func routeIdle(ctx context.Context, s *testbed.Suite, count int) error {
	other, err := s.Bed.Lab.Address(testbed.Nodes[1])
	if err != nil {
		return err
	}
	route := []string{"ip", "route", "add", "198.18.1.0/24", "via", other.String()}
	if _, err := s.Bed.Exec(ctx, testbed.Nodes[0], route...); err != nil {
		return err
	}
	for n := range count {
		address := []string{"ip", "address", "add", idleAddress(n).String() + "/32", "dev", "lo"}
		if _, err := s.Bed.Exec(ctx, testbed.Nodes[1], address...); err != nil {
			return err
		}
	}
	return nil
}

// start returns when all nodes have joined.
func (p *idlePeers) start(in *lab.Lab, config idlePeersConfig) (err error) {
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// A process is in the network of its starting thread.
	if err := in.InNetwork(testbed.Nodes[1], p.cmd.Start); err != nil {
		return fmt.Errorf("start the simulated nodes: %w", err)
	}
	if err := json.NewEncoder(p.in).Encode(config); err != nil {
		return fmt.Errorf("simulated nodes: %w", err)
	}
	p.out = json.NewDecoder(bufio.NewReader(out))
	return p.read(&idleCount{})
}

func (p *idlePeers) read(count *idleCount) error {
	if err := p.out.Decode(count); err != nil {
		return fmt.Errorf("simulated nodes: %w", err)
	}
	return nil
}

// count returns the counts so far.
func (p *idlePeers) count() (count idleCount, err error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return count, fmt.Errorf("simulated nodes: %w", err)
	}
	return count, p.read(&count)
}

func (p *idlePeers) stop() error {
	var err error
	if p.cmd.Process != nil {
		_ = p.in.Close() // it has ended, or ends now
		err = p.cmd.Wait()
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}
