package hosts

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/godwit/godwit/internal/lab"
)

const (
	// Namespace is the network namespace of the machines' network, and of their clients.
	Namespace = "godwit-hosts"

	bridge  = "hosts"
	gateway = "10.77.0.1" // the clients' address
)

// makeNetwork makes the network namespace of the machines and their clients.
func makeNetwork(ctx context.Context) error {
	if err := removeNetwork(ctx); err != nil {
		return err
	}
	for _, command := range []string{
		"netns add " + Namespace,
		"-n " + Namespace + " link set lo up",
		"-n " + Namespace + " link add " + bridge + " type bridge",
		"-n " + Namespace + " address add " + gateway + "/24 dev " + bridge,
		"-n " + Namespace + " link set " + bridge + " up",
	} {
		if _, err := run(ctx, "ip", strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// removeNetwork also removes the network of a killed run.
func removeNetwork(ctx context.Context) error {
	if _, err := os.Stat(namespacePath()); err != nil {
		return nil
	}
	_, err := run(ctx, "ip", "netns", "delete", Namespace)
	return err
}

func namespacePath() string { return "/run/netns/" + Namespace }

// Dial connects to an address on the machines' network. The address must be numeric.
func Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = lab.InNetworkAt(namespacePath(), func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Client returns a command of a client of the machines: it runs on this machine, in their network.
func Client(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", Namespace}, args...)...)
}
