package services

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/hosts"
)

// site is the place where services move: between nodes a and b, while clients use them from a separate
// machine.
type site interface {
	Command(ctx context.Context, machine string, args ...string) (*exec.Cmd, error)
	Exec(ctx context.Context, machine string, args ...string) (string, error)
	Dial(ctx context.Context, machine, network, address string) (net.Conn, error)
	// links returns the names of the links over which services can move; setLink selects one.
	links() []string
	setLink(name string) error
	// startDocker starts Docker on a node, with Godwit's routed network.
	startDocker(ctx context.Context, node string) error
	// dockerNodes returns the nodes whose Docker must run, too, when a node's does.
	dockerNodes(node string) []string
	// movesUsers reports whether agents may move processes of users other than root.
	movesUsers() (bool, error)
	// slowness is how much longer clients wait than in a lab, between two requests and for an answer.
	slowness() time.Duration
}

// labSite is a lab on this machine.
type labSite struct{ *lab.Lab }

// shapes are the lab's links.
var shapes = map[string]lab.Link{
	"1gbit":   {BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond},
	"100mbit": {BandwidthBitsPerSecond: 100_000_000, RTT: 20 * time.Millisecond},
}

func (labSite) links() []string               { return []string{"1gbit", "100mbit"} }
func (l labSite) setLink(name string) error   { return l.SetLink("a", "b", shapes[name]) }
func (labSite) slowness() time.Duration       { return 1 }
func (labSite) dockerNodes(n string) []string { return []string{n, clientNode} }

// startDocker starts the node's own Docker. Its configuration is not the machine's; StartDocker has told
// the daemon of the runtime.
func (l labSite) startDocker(ctx context.Context, node string) error {
	if err := l.Engines().StartDocker(ctx, node); err != nil {
		return err
	}
	_, err := l.Exec(ctx, node, "godwit", "engine", "setup", "docker", "--network", network, "--config",
		"/tmp/daemon.json", "--pidfile", "/tmp/none")
	return err
}

// movesUsers reports whether this process, with whose rights agents run, has CAP_SYS_RESOURCE, number 24 in
// include/uapi/linux/capability.h.
func (labSite) movesUsers() (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	_, after, _ := strings.Cut(string(status), "CapEff:")
	line, _, _ := strings.Cut(after, "\n")
	own, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return own>>24&1 == 1, err
}

// hostSite is two stock Debian machines in QEMU. There is one link, as fast as the emulation.
type hostSite struct{ *hosts.Pair }

func (hostSite) links() []string               { return []string{"lan"} }
func (hostSite) setLink(string) error          { return nil }
func (hostSite) slowness() time.Duration       { return 20 }
func (hostSite) dockerNodes(n string) []string { return []string{n} }
func (hostSite) movesUsers() (bool, error)     { return true, nil }

func (h hostSite) Command(ctx context.Context, machine string, args ...string) (*exec.Cmd, error) {
	if machine == clientMachine {
		return hosts.Client(ctx, args...), nil
	}
	all := h.Machines()
	found := slices.IndexFunc(all, func(m *hosts.Machine) bool { return m.Name == machine })
	if found < 0 {
		return nil, errors.New("there is no machine " + machine)
	}
	return all[found].Command(ctx, args...), nil
}

func (h hostSite) Exec(ctx context.Context, machine string, args ...string) (string, error) {
	command, err := h.Command(ctx, machine, args...)
	if err != nil {
		return "", err
	}
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s", machine, strings.Join(args, " "), err,
			strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (hostSite) Dial(ctx context.Context, _, network, address string) (net.Conn, error) {
	return hosts.Dial(ctx, network, address)
}

func (h hostSite) startDocker(ctx context.Context, node string) error {
	_, err := h.Exec(ctx, node, "sh", "-c", "systemctl start docker && godwit engine setup docker --network "+
		network)
	return err
}
