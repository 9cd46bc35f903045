package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/bench"
)

const benchNetworkLong = `Measure how much one TCP connection carries through the overlay between two nodes, and how many processors it keeps busy:

  vxlan                    in the clear
  wireguard by the kernel  if the kernel has WireGuard
  wireguard by a process   WireGuard's implementation in Go

The nodes are two network namespaces of this machine, joined by a wire that loses and delays nothing: both ends and the
program that measures share its processors.`

func newBenchNetworkCommand() *cobra.Command {
	var config bench.NetworkConfig
	var file string
	cmd := &cobra.Command{
		Use:     "network",
		Short:   "How much the overlay between nodes carries, encrypted and not",
		Long:    benchNetworkLong,
		Example: "  godwit bench network --json network.json\n  godwit bench network --quick --way vxlan",
		Args:    noArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.BoolVar(&config.Quick, "quick", false, "one short sample")
	flags.StringArrayVar(&config.Ways, "way", nil, "measure only this way: "+strings.Join(bench.NetworkWayNames(), "; "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		result, err := bench.Network(cmd.Context(), config)
		return showBench(cmd, result, err, file)
	}
	return cmd
}
