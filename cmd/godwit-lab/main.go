// Command godwit-lab emulates nodes and links on one machine, to try, demonstrate and measure Godwit.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// version is stamped by the Makefile.
var version = "0.1.0-dev"

const long = `Godwit-lab runs several nodes on this machine, joined by links whose bandwidth, delay and
loss you choose. Use it to try Godwit, to reproduce a result, or to see the effect of a bad link.

Nodes are named a, b, c and so on. Each has its own network, processes, /run, /tmp and state, its own copies
of the engines' settings (/etc/docker, /etc/containers), and an agent. They share this machine's other files.
"godwit-lab down" removes everything, even after a crash.

Run godwit-lab as root. Nodes run the program godwit that lies beside godwit-lab or, failing that, the one in
PATH.`

const example = `  godwit-lab up --nodes 2 --bandwidth 100mbit --rtt 20ms
  godwit-lab exec a -- godwit nodes
  godwit-lab client a
  godwit-lab exec client -- ping -c 3 10.77.0.2
  godwit-lab link a b --rtt 100ms --loss 0.5%
  godwit-lab down`

func main() {
	lab.RunHidden()
	if len(os.Args) > 1 && os.Args[1] == wireguard.Command { // the process that "bench network" measures
		os.Exit(wireguard.Main(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	plain := func(err error) (string, int) { return err.Error(), cli.ExitError }
	os.Exit(cli.Report(os.Stderr, "godwit-lab", err, plain))
}

// newRootCommand wires all commands together. No command registers itself.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "godwit-lab", Short: "Run nodes and links on this machine",
		Long: long, Example: example, Version: version,
	}
	root.AddGroup(&cobra.Group{ID: "lab", Title: "Labs:"},
		&cobra.Group{ID: "show", Title: "Show and measure:"})
	cli.AddGroup(root, "lab", append(labCommands(), newImageCommand())...)
	cli.AddGroup(root, "show", newDemoCommand(), newBenchCommand())
	root.AddCommand(cli.NewManCommand("godwit-lab"))
	cli.Finish(root)
	return root
}
