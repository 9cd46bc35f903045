package bench

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

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

const (
	suiteIdle = "idle"
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

// IdleConfig configures the suite idle.
type IdleConfig struct {
	Lab        string // name of the lab; an existing one from a crash is taken down
	Agent      string // another godwit program, whose agent is measured first; empty: none
	ImageCache string // see package lab/image
	Containers int
	Peers      int
	Quick      bool
	Progress   func(string)
}

// MaxIdlePeers leaves half of the pool to the homes of their guests.
const MaxIdlePeers = idleHomes - 1

func (c IdleConfig) validate() error {
	if c.Containers < 0 || c.Peers < 0 || c.Peers > MaxIdlePeers {
		return fmt.Errorf("%d containers, %d other nodes: neither may be negative, and at most %d nodes",
			c.Containers, c.Peers, MaxIdlePeers)
	}
	return needRoot()
}

// timing returns how long an agent may settle, and the number and length of the intervals that are measured
// then.
func (c IdleConfig) timing() (settle time.Duration, intervals int, interval time.Duration) {
	if c.Quick {
		return 6 * time.Second, 3, 3 * time.Second
	}
	return 30 * time.Second, 18, 10 * time.Second
}

// Idle measures the cost of an agent that has containers of Docker and other nodes to greet, but no work.
func Idle(ctx context.Context, config IdleConfig) (result Result, err error) {
	if err := config.validate(); err != nil {
		return Result{}, err
	}
	shared := Config{Lab: config.Lab, ImageCache: config.ImageCache, Progress: config.Progress}
	s := &suite{config: shared, began: time.Now()}
	result = Result{Suite: suiteIdle, Started: s.began.UTC(), Rows: []Row{}, Asked: []Asked{}}
	if result.Host, err = s.prepare(); err != nil {
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
		s.say("%s", way)
		one := &series{workload: workload, link: linkFast, way: way}
		if err := s.idle(ctx, config, program, one); err != nil {
			return result, fmt.Errorf("%s: %w", way, err)
		}
		result.Rows = append(result.Rows, one.rows()...)
	}
	if row := find(result.Rows, workload, linkFast, way, metricAgentBusy); row != nil {
		result.Asked = append(result.Asked, Asked{
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
func (s *suite) idle(ctx context.Context, config IdleConfig, program string, to *series) (err error) {
	if err := lab.Down(config.Lab); err != nil && !errors.Is(err, lab.ErrNoLab) {
		return fmt.Errorf("what an earlier benchmark left: %w", err)
	}
	link, err := parseLink(linkFast)
	if err != nil {
		return err
	}
	up, err := lab.Up(ctx, lab.Config{
		Name: config.Lab, Nodes: len(nodes), Link: link, Program: program, Bare: true, NoCheck: true,
	})
	if err != nil {
		return err
	}
	s.bed.lab = up
	defer func() { err = errors.Join(err, up.Down()) }()
	if err := s.startIdle(ctx, config.Containers); err != nil {
		return err
	}
	peers, err := s.startIdlePeers(ctx, config.Peers, config.Containers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peers.stop()) }()
	s.say("%d containers and %d other nodes are there", config.Containers, config.Peers)
	return s.measureIdle(ctx, config, peers, to)
}

// startIdle starts Docker, containers that sleep, and the agent.
func (s *suite) startIdle(ctx context.Context, containers int) error {
	archive, err := labimage.Build(ctx, "busybox", s.config.ImageCache)
	if err != nil {
		return err
	}
	engine := docker{byCommand{s.bed, "docker"}}
	if err := s.bed.lab.Engines().StartDocker(ctx, nodes[0]); err != nil {
		return err
	}
	image, err := engine.load(ctx, nodes[0], archive, outside{})
	if err != nil {
		return err
	}
	for n := range containers {
		name := fmt.Sprintf("idle-%d", n+1)
		run := []string{"docker", "run", "--detach", "--name", name, image, "/usr/bin/sleep", "1000000"}
		if _, err := s.bed.exec(ctx, nodes[0], run...); err != nil {
			return err
		}
	}
	address, err := s.bed.lab.Address(nodes[0])
	if err == nil {
		found := []string{program, "node", "init", "--name", nodes[0], "--address", address.String()}
		_, err = s.bed.exec(ctx, nodes[0], found...)
	}
	if err != nil {
		return err
	}
	return s.bed.lab.StartAgent(ctx, nodes[0])
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
func (s *suite) startIdlePeers(ctx context.Context, count, containers int) (*idlePeers, error) {
	config := idlePeersConfig{Server: nodes[0], Containers: containers}
	server, err := s.bed.lab.Address(nodes[0])
	if err != nil {
		return nil, err
	}
	config.Address = net.JoinHostPort(server.String(), strconv.Itoa(idlePeerPort))
	if err := s.routeIdle(ctx, count); err != nil {
		return nil, err
	}
	for n := range count {
		config.Addresses = append(config.Addresses, idleAddress(n).String())
		token, err := s.bed.exec(ctx, nodes[0], program, "node", "token")
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
	if err := p.start(s.bed.lab, config); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// idleAddress returns the address of a simulated node, in a network for measurements (RFC 2544).
func idleAddress(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 1, byte(n + 1)}) }

// routeIdle gives node b the addresses of the simulated nodes.
func (s *suite) routeIdle(ctx context.Context, count int) error {
	other, err := s.bed.lab.Address(nodes[1])
	if err != nil {
		return err
	}
	route := []string{"ip", "route", "add", "198.18.1.0/24", "via", other.String()}
	if _, err := s.bed.exec(ctx, nodes[0], route...); err != nil {
		return err
	}
	for n := range count {
		address := []string{"ip", "address", "add", idleAddress(n).String() + "/32", "dev", "lo"}
		if _, err := s.bed.exec(ctx, nodes[1], address...); err != nil {
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
	if err := in.InNetwork(nodes[1], p.cmd.Start); err != nil {
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
