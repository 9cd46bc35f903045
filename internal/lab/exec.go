package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Command returns a command that runs a program in a node or client. Killing the command kills the program;
// its exit code is the program's, or 128 and the signal's number. It inherits only what the caller sets in
// it.
func (l *Lab) Command(ctx context.Context, machine string, args ...string) (*exec.Cmd, error) {
	if len(args) == 0 {
		return nil, errors.New("no command given")
	}
	return l.enter(ctx, machine, "wait", args)
}

func (l *Lab) enter(ctx context.Context, name, mode string, args []string) (*exec.Cmd, error) {
	s, err := loadState(l.name)
	if err != nil {
		return nil, err
	}
	m, err := s.running(name)
	if err != nil {
		return nil, err
	}
	if s.Helper == "" {
		return nil, fmt.Errorf("lab %s was made by an older version; end it with: godwit-lab down --name %s",
			s.Name, s.Name)
	}
	started := strconv.FormatUint(m.Started, 10)
	hidden := append([]string{"lab-enter", l.name, name, strconv.Itoa(m.PID), started, mode}, args...)
	cmd := exec.CommandContext(ctx, s.Helper, hidden...)
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}

// running finds a machine and checks that it runs.
func (s *state) running(name string) (*machine, error) {
	m, err := s.machine(name)
	if err != nil {
		return nil, err
	}
	if !m.alive() {
		return nil,
			fmt.Errorf("%s of lab %s is not running: its init is gone; take the lab down and up again",
				name, s.Name)
	}
	return m, nil
}

// Exec runs a program in a node or client and returns its standard output.
func (l *Lab) Exec(ctx context.Context, machine string, args ...string) (string, error) {
	cmd, err := l.Command(ctx, machine, args...)
	if err != nil {
		return "", err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s",
			machine, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// InNetwork calls f on a thread in the network namespace of a node or client. Sockets that f opens stay
// there. f must not leave the work to other goroutines.
func (l *Lab) InNetwork(machine string, f func() error) error {
	s, err := loadState(l.name)
	if err != nil {
		return err
	}
	m, err := s.running(machine)
	if err != nil {
		return err
	}
	return inNetworkOf(m.PID, f)
}

// Dial connects from a node or client. The address must be numeric: the lab looks up no names.
func (l *Lab) Dial(ctx context.Context, machine, network, address string) (conn net.Conn, err error) {
	err = l.InNetwork(machine, func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// DialBeside connects from the network of a process of a node, for example a container's, by the process's
// PID in the node.
func (l *Lab) DialBeside(ctx context.Context, node string, pid int, network, address string) (conn net.Conn,
	err error) {
	root, err := l.Root(node)
	if err != nil {
		return nil, err
	}
	err = InNetworkAt(fmt.Sprintf("%s/proc/%d/ns/net", root, pid), func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens for connections in a node or client.
func (l *Lab) Listen(ctx context.Context, machine, network, address string) (listener net.Listener,
	err error) {
	err = l.InNetwork(machine, func() error {
		listener, err = (&net.ListenConfig{}).Listen(ctx, network, address)
		return err
	})
	return listener, err
}

// PID returns the process id, on the machine, of the init of a node or client. Its namespaces are those of
// the node.
func (l *Lab) PID(machine string) (int, error) {
	s, err := loadState(l.name)
	if err != nil {
		return 0, err
	}
	m, err := s.running(machine)
	if err != nil {
		return 0, err
	}
	return m.PID, nil
}

// Root returns a path on the machine that shows the file system of a node or client, with all its mounts.
func (l *Lab) Root(machine string) (string, error) {
	pid, err := l.PID(machine)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/root", pid), nil
}

// Kill kills the init of a node or client, and so all its processes, as a power failure would. The node
// stays dead; this is for tests of the others' reactions.
func (l *Lab) Kill(machine string) error {
	pid, err := l.PID(machine)
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", machine, os.NewSyscallError("kill", err))
	}
	return nil
}

// Become replaces this process by a program in a node or client. It returns only on failure.
func (l *Lab) Become(machine string, args ...string) error {
	cmd, err := l.Command(context.Background(), machine, args...)
	if err != nil {
		return err
	}
	if cmd.Err != nil {
		return cmd.Err
	}
	return fmt.Errorf("run in %s: %w", machine, unix.Exec(cmd.Path, cmd.Args, os.Environ()))
}

// Address of a node, by which the others reach it, or of a client.
func (l *Lab) Address(machine string) (netip.Addr, error) {
	s, err := loadState(l.name)
	if err != nil {
		return netip.Addr{}, err
	}
	m, err := s.machine(machine)
	if err != nil {
		return netip.Addr{}, err
	}
	return m.address(), nil
}
