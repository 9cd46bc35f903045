package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// agentPool is the pool of containers' addresses in a lab. It is fixed, whatever the default is, because
// scripts depend on it.
const agentPool = "10.88.0.0/16"

// claim reserves the name, so that two labs of one name are not made in parallel.
func claim(config Config) error {
	unlockAll, err := lockLabs()
	if err != nil {
		return err
	}
	defer unlockAll()
	unlock, err := lockLab(config.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Mkdir(runDirectory(config.Name), 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("lab %s %w, perhaps left by a crash; take it down first: godwit-lab down "+
				"--name %s",
				config.Name, ErrExists, config.Name)
		}
		return fmt.Errorf("lab %s: %w", config.Name, err)
	}
	if err := os.MkdirAll(filepath.Join(StateDirectory, config.Name), 0o755); err != nil {
		return fmt.Errorf("lab %s: %w", config.Name, err)
	}
	s := &state{
		Name: config.Name, Program: config.Program, Helper: config.Helper, Wires: config.Wires,
		Bare:      config.Bare,
		StateSize: config.StateSizeBytes, Created: time.Now(),
	}
	return s.save()
}

// builder makes a lab whose name is claimed.
type builder struct {
	lab    *Lab
	config Config
	report func(string) // is told what is done
}

func (b builder) build(ctx context.Context) error {
	if err := b.nodes(ctx); err != nil {
		return err
	}
	if err := b.links(); err != nil {
		return err
	}
	if !b.config.NoCheck {
		if err := (meter{b.lab}).checkAll(ctx, b.report); err != nil {
			return err
		}
	}
	if b.config.Bare {
		return nil
	}
	return b.agents(ctx)
}

func (b builder) nodes(ctx context.Context) error {
	for number := 1; number <= b.config.Nodes; number++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := &machine{Name: nodeName(number), Number: number}
		err := b.lab.update(func(s *state) error {
			s.Nodes = append(s.Nodes, m)
			return s.startMachine(m)
		})
		if err != nil {
			return err
		}
		b.report(fmt.Sprintf("node %s is up at %s", m.Name, nodeAddress(number)))
	}
	return nil
}

func (b builder) links() error {
	err := b.lab.update(func(s *state) error {
		if err := s.chooseWires(); err != nil {
			return err
		}
		for i, a := range s.Nodes {
			for _, other := range s.Nodes[i+1:] {
				w := &wire{Key: a.Name + "-" + other.Name, A: a.Name, B: other.Name, Link: b.config.Link}
				if err := s.connect(w, a, other); err != nil {
					return err
				}
				s.Links = append(s.Links, w)
			}
		}
		if len(s.Nodes) == 1 {
			return onlyAddress(s.Nodes[0])
		}
		return nil
	})
	if err == nil && b.config.Nodes > 1 {
		b.report(fmt.Sprintf("every two nodes are linked: %s", b.config.Link))
	}
	return err
}

// chooseWires chooses wires that the machine supports and starts the relay if needed.
func (s *state) chooseWires() error {
	netem := s.Wires != WiresRelay && haveNetem(s.Nodes[0].PID)
	switch {
	case s.Wires == WiresNetem && !netem:
		return errors.New("this kernel has no netem (modprobe sch_netem); use --wires relay")
	case netem:
		s.Wires = WiresNetem
		return nil
	case !exists(tunDevice):
		return fmt.Errorf("the kernel has neither netem nor %s; try modprobe sch_netem or modprobe tun",
			tunDevice)
	}
	s.Wires = WiresRelay
	return s.startRelay()
}

// agents gives every node its identity and starts the agents: the first node creates the cluster, the
// others join it.
func (b builder) agents(ctx context.Context) error {
	founder := nodeName(1)
	address := nodeAddress(1).String()
	if _, err := b.lab.Exec(ctx, founder, nodeProgram, "node", "init", "--name", founder,
		"--address", address, "--pool", agentPool); err != nil {
		return fmt.Errorf("first identity: %w", err)
	}
	if err := b.lab.StartAgent(ctx, founder, b.config.AgentArgs...); err != nil {
		return err
	}
	b.report("agent of node " + founder + " answers")
	for number := 2; number <= b.config.Nodes; number++ {
		if err := b.join(ctx, number); err != nil {
			return err
		}
		b.report("agent of node " + nodeName(number) + " answers")
	}
	return nil
}

func (b builder) join(ctx context.Context, number int) error {
	founder, name := nodeName(1), nodeName(number)
	token, err := b.lab.Exec(ctx, founder, nodeProgram, "node", "token")
	if err != nil {
		return fmt.Errorf("token for %s: %w", name, err)
	}
	to := net.JoinHostPort(nodeAddress(1).String(), strconv.Itoa(agentPort))
	_, err = b.lab.Exec(ctx, name, nodeProgram, "node", "join", to, lastLine(token),
		"--name", name, "--address", nodeAddress(number).String())
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return b.lab.StartAgent(ctx, name, b.config.AgentArgs...)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
