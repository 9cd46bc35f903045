package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/bench"
)

const benchIdleLong = `Measure what an agent costs that has nothing to do: the processor time of the agent, of
the process that encrypts packets of containers where the kernel lacks WireGuard, and of Docker (with its
containerd), the agent's memory, and the size of greetings. Each is the median of intervals.

The agent has containers of Docker that sleep. One process simulates the other nodes: each has an
identity of its own, has joined the agent's cluster, has as many containers as the agent, ten of them
not at home there, and greets the agent over mutual TLS as agents do. The simulated nodes refuse data
connections, so the agent's measurements of links are not in the figures; and they do not answer WireGuard,
so the encrypting process begins with all of them again and again, which it does not in a real cluster.

With --agent, the agent of another godwit program is measured first, in the same way. The simulated
nodes greet it as nodes of its own version do, which may list all that they know in each greeting.

The whole takes about 5 minutes for each program; --quick takes one, most of it to start the containers.`

func newBenchIdleCommand() *cobra.Command {
	config := bench.IdleConfig{ImageCache: labImageCache}
	var file string
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "What an agent costs that has nothing to do",
		Long:  benchIdleLong,
		Example: `  godwit bench idle --json idle.json
  godwit bench idle --containers 20 --nodes 7 --agent ./godwit-before`,
		Args: noArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.StringVar(&config.Lab, "lab", "bench-idle",
		"name of the lab that is made for it, and is gone at the end")
	flags.StringVar(&config.Agent, "agent", "", "a godwit program whose agent is measured, too")
	flags.IntVar(&config.Containers, "containers", 100, "containers of Docker on the agent's node")
	flags.IntVar(&config.Peers, "nodes", 49, "other nodes, which are simulated")
	flags.BoolVar(&config.Quick, "quick", false, "few and short intervals")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		result, err := bench.Idle(cmd.Context(), config)
		return showBench(cmd, result, err, file)
	}
	return cmd
}

// newBenchIdlePeersCommand is the process of the simulated nodes.
func newBenchIdlePeersCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "idle-peers",
		Short:  "Be the simulated nodes of the benchmark idle",
		Hidden: true,
		Args:   noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.IdlePeers(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
