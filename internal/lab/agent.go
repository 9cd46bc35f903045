package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// agentTimeout is how long an agent may take to answer after its start.
const agentTimeout = time.Minute

// AgentLog returns the path, on the machine, of the log of a node's agent.
func (l *Lab) AgentLog(node string) string {
	return filepath.Join(runDirectory(l.name), node+"-agent.log")
}

// StartAgent starts the agent of a node and returns when it answers. If the agent does not answer, the
// error contains the end of its log.
func (l *Lab) StartAgent(ctx context.Context, node string, args ...string) error {
	return l.StartAgentWith(ctx, node, nil, args...)
}

// StartAgentWith is StartAgent with additional environment variables, KEY=VALUE.
func (l *Lab) StartAgentWith(ctx context.Context, node string, env []string, args ...string) error {
	a := agent{l, node}
	pid, err := a.pid()
	if err != nil {
		return err
	}
	if pid != 0 {
		return fmt.Errorf("agent of node %s: %w, process %d", node, ErrExists, pid)
	}
	log, err := os.OpenFile(l.AgentLog(node), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("agent of node %s: %w", node, err)
	}
	defer log.Close()
	cmd, err := l.enter(ctx, node, "detach", append([]string{nodeProgram, "agent"}, args...))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("agent of node %s: %w%s", node, err, a.logTail())
	}
	return a.await(ctx)
}

// agent is the agent of a node.
type agent struct {
	lab  *Lab
	node string
}

func (a agent) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	root, err := a.lab.Root(a.node)
	if err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		conn, err := net.Dial("unix", root+agentSocket)
		if err == nil {
			return true, conn.Close()
		}
		pid, err := a.find(isAgentSoon)
		if err == nil && pid == 0 {
			err = errors.New("it ended")
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("agent of node %s does not answer: %w%s", a.node, err, a.logTail())
	}
	return nil
}

// logTail returns the end of an agent's log, for an error message.
func (a agent) logTail() string {
	data, err := os.ReadFile(a.lab.AgentLog(a.node))
	if err != nil || len(data) == 0 {
		return " (it wrote nothing)"
	}
	data = data[max(0, len(data)-2000):]
	return "; it wrote:\n" + strings.TrimSpace(string(data))
}

// AgentPID returns the process id, on the machine, of the agent of a node; 0 if none runs.
func (l *Lab) AgentPID(node string) (int, error) { return agent{l, node}.pid() }

// pid searches the processes of the node, so it needs no record and survives a restart of anything.
func (a agent) pid() (int, error) { return a.find(isAgent) }

func (a agent) find(is func(pid int) bool) (int, error) {
	s, err := loadState(a.lab.name)
	if err != nil {
		return 0, err
	}
	m, err := s.node(a.node)
	if err != nil {
		return 0, err
	}
	return s.agentOf(m, is), nil
}

// agentOf finds the process of the node that runs the lab's program as agent. It skips processes of
// containers: the agent is in the node's own cgroup.
func (s *state) agentOf(m *machine, is func(pid int) bool) int {
	if !m.alive() {
		return 0
	}
	cgroups, err := hierarchies()
	if err != nil {
		return 0
	}
	for _, h := range cgroups {
		dir := h.path(s.Name, m.Name)
		if h.V2 {
			dir = filepath.Join(dir, initLeaf)
		}
		for _, pid := range directProcesses(dir) {
			if is(pid) && startTime(pid) != 0 {
				return pid
			}
		}
	}
	return 0
}

// isAgent reports whether a process has the arguments of an agent: a child between fork and exec has its
// parent's arguments.
func isAgent(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := strings.Split(string(data), "\x00")
	return len(args) >= 2 && args[0] == nodeProgram && args[1] == "agent"
}

// isAgentSoon is isAgent, but also true for a process without any arguments: it is in the middle of
// execve(2), and may become an agent. Its parent may already know that it was started.
func isAgentSoon(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(data) == 0 || isAgent(pid)
}

// KillAgent kills only the agent of a node, with SIGKILL, and returns when it is gone.
func (l *Lab) KillAgent(ctx context.Context, node string) error {
	return agent{l, node}.signal(ctx, unix.SIGKILL)
}

// DumpAgent makes the agent of a node write the stacks of its goroutines to its log, and end.
func (l *Lab) DumpAgent(ctx context.Context, node string) error {
	return agent{l, node}.signal(ctx, unix.SIGQUIT)
}

// StopAgent asks the agent of a node to end and returns when it is gone.
func (l *Lab) StopAgent(ctx context.Context, node string) error {
	return agent{l, node}.signal(ctx, unix.SIGTERM)
}

func (a agent) signal(ctx context.Context, signal unix.Signal) error {
	pid, err := a.pid()
	if err != nil {
		return err
	}
	if pid == 0 {
		return fmt.Errorf("the agent of node %s does not run", a.node)
	}
	started := startTime(pid)
	if err := unix.Kill(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("agent of node %s: %w", a.node, err)
	}
	now, err := kernel.Ticks()
	if err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		if startTime(pid) == started {
			return false, nil
		}
		// A child that the agent had just forked looks like the agent until it calls exec.
		seen, err := a.pid()
		return seen == 0 || startTime(seen) > now, err
	})
	if err != nil {
		return fmt.Errorf("agent of node %s does not end: %w", a.node, err)
	}
	return nil
}
