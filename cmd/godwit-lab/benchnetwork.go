package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/bench/network"
	"github.com/godwit/godwit/internal/cli"
)

const benchNetworkLong = `Measure the throughput of one TCP connection through the overlay between two
nodes, and the CPUs that it keeps busy:

  vxlan                    not encrypted
  wireguard by the kernel  if the kernel has WireGuard
  wireguard by a process   the Go implementation of WireGuard

The nodes are two network namespaces of this machine, joined by a link without loss or delay. Both ends and
the measuring program share the machine's CPUs.`

func newBenchNetworkCommand() *cobra.Command {
	var config network.Config
	var file string
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Measure the throughput of the overlay between nodes, encrypted and not",
		Long:  benchNetworkLong,
		Example: "  godwit-lab bench network --json network.json\n  godwit-lab bench network --quick " +
			"--way vxlan",
		Args: cli.NoArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.BoolVar(&config.Quick, "quick", false, "take one short sample")
	flags.StringArrayVar(&config.Ways, "way", nil,
		"measure only this way: "+strings.Join(network.Ways(), "; "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		result, err := network.Run(cmd.Context(), config)
		return showBench(cmd, result, err, file)
	}
	return cmd
}
