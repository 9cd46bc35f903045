// Command godwit-controller sees all nodes of a cluster and asks their agents to move containers: when a
// user wants that, when a node is drained, and when containers' labels call for it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/cli"
)

// version is stamped by the Makefile.
var version = "0.1.0-dev"

const long = `Godwit-controller is for clusters that somebody wants to operate from one place: it
drains nodes,
moves containers from any machine, and limits how many migrations are under way. It only asks the nodes'
agents, which decide among themselves whether a container has moved. Migrations under way go on without it.

Run it as root, on a node or on another machine. Its state is in an etcd within this program, or in one that
you run (--etcd-endpoints).`

const example = `  godwit-controller run
  godwit-controller token node | ssh a godwit node connect 192.0.2.1 --token-file -
  godwit-controller token user anna | install -D -m 600 -o anna /dev/stdin ~anna/.config/godwit/token
  godwit --controller 192.0.2.1 node drain a`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	plain := func(err error) (string, int) {
		if s, ok := status.FromError(err); ok {
			return s.Message(), cli.ExitError
		}
		return err.Error(), cli.ExitError
	}
	os.Exit(cli.Report(os.Stderr, "godwit-controller", err, plain))
}

// newRootCommand wires all commands together. No command registers itself.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "godwit-controller", Short: "Operate a cluster of Godwit nodes", Long: long, Example: example,
		Version: version,
	}
	root.PersistentFlags().String("run", "/run/godwit-controller",
		"directory for the socket and other data that a reboot deletes")
	root.AddCommand(newRunCommand(), newTokenCommand(), cli.NewManCommand("godwit-controller"))
	cli.Finish(root)
	return root
}
