package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/bench/idle"
	"github.com/godwit/godwit/internal/cli"
)

const benchIdleLong = `Measure the cost of an idle agent: the CPU time of the agent, of Docker (with its
containerd), and, where the kernel lacks WireGuard, of the process that encrypts containers' packets; the
agent's memory; and the size of greetings between nodes. Each figure is the median over several intervals.

The agent's node runs Docker containers that only sleep. A single process simulates the other nodes. Each
simulated node has its own identity, has joined the agent's cluster, and greets the agent over mutual TLS, as
an agent would. It reports as many containers as the agent has, ten of them with a different home node.

Two things differ from a real cluster. The simulated nodes refuse data connections, so the figures do not
include the agent's link measurements. They also never answer WireGuard handshakes, so the encrypting process
keeps retrying them.

By default, the benchmark measures the godwit beside godwit-lab, or the one in PATH. With --agent, it first
measures the agent of a second godwit binary in the same way. The simulated nodes
greet it the way nodes of its own version do, which may mean sending everything they know each time.

A run takes about 5 minutes per binary. With --quick it takes about one, mostly spent starting containers.`

func newBenchIdleCommand() *cobra.Command {
	config := idle.Config{ImageCache: imageCache}
	var file string
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "Measure the cost of an idle agent",
		Long:  benchIdleLong,
		Example: `  godwit-lab bench idle --json idle.json
  godwit-lab bench idle --containers 20 --nodes 7 --agent ./godwit-before`,
		Args: cli.NoArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.StringVar(&config.Lab, "lab", "bench-idle",
		"name of the temporary lab")
	flags.StringVar(&config.Agent, "agent", "", "path of a second godwit binary to measure for comparison")
	flags.IntVar(&config.Containers, "containers", 100, "number of Docker containers on the agent's node")
	flags.IntVar(&config.Peers, "nodes", 49, "number of simulated nodes")
	flags.BoolVar(&config.Quick, "quick", false, "use fewer and shorter intervals")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		result, err := idle.Run(cmd.Context(), config)
		return showBench(cmd, result, err, file)
	}
	return cmd
}

// newBenchIdlePeersCommand returns the command that runs the simulated nodes in a process of their own.
func newBenchIdlePeersCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "idle-peers",
		Short:  "Simulate the other nodes of the benchmark idle",
		Hidden: true,
		Args:   cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return idle.Peers(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
