package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/bench"
)

const benchLong = `Bench measures Godwit side by side with other ways to do the same, in a lab on this machine, all in one run.

Each suite writes a table for people, what is asked of Godwit and whether that is met, and with --json FILE one flat
list of rows with all samples.`

// newBenchCommand is the group of benchmarks.
func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench SUITE",
		Short: "Measure Godwit side by side with other ways",
		Long:  benchLong,
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchSwitchoverCommand(), newBenchTimeCommand())
	return cmd
}

const benchSwitchoverLong = `Measure how long a container stands still when it is moved:

  criu floor       runc checkpoint and restore on one node, in memory, frozen beforehand: nothing is sent
  runc and rsync   runc checkpoint, rsync, runc restore (Puliafito et al., Sensors 2019)
  podman           podman container checkpoint --export, rsync, podman container restore --import
  godwit cold      godwit migrate

The ways take turns. Of each the median of all runs is told, and the lowest and the highest. The whole takes about half
an hour, nearly all of it for 64 MiB of Redis over 10 Mbit/s; --quick takes two minutes.`

func newBenchSwitchoverCommand() *cobra.Command {
	config := bench.Config{Lab: "bench-switchover", ImageCache: labImageCache}
	var file string
	cmd := &cobra.Command{
		Use:   "switchover",
		Short: "How long a container stands still when it is moved",
		Long:  benchSwitchoverLong,
		Example: `  godwit bench switchover --json switchover.json
  godwit bench switchover --quick
  godwit bench switchover --workload tiny --link 1gbit --link 10mbit --runs 15`,
		Args: usageArgs(cobra.NoArgs),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.BoolVar(&config.Quick, "quick", false, "at most 3 runs, and only the fast link")
	flags.IntVar(&config.Runs, "runs", bench.DefaultRuns, "how often each way is measured")
	flags.StringArrayVar(&config.Workloads, "workload", nil, "only this one: "+strings.Join(bench.WorkloadNames(), ", "))
	flags.StringArrayVar(&config.Links, "link", nil, "only this one: "+strings.Join(bench.LinkNames(), ", "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		return benchSwitchover(cmd, config, file)
	}
	return cmd
}

// benchSwitchover shows what was measured also if some of it failed.
func benchSwitchover(cmd *cobra.Command, config bench.Config, file string) error {
	result, err := bench.Switchover(cmd.Context(), config)
	if len(result.Rows) == 0 {
		return err
	}
	result.WriteText(cmd.OutOrStdout())
	if file != "" {
		if writeErr := result.WriteFile(file); err == nil {
			err = writeErr
		}
	}
	return err
}

// newBenchTimeCommand is what a benchmark runs in a node.
func newBenchTimeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "time -- COMMAND [ARGUMENT...]",
		Short:  "Run a command and print how long it took, as JSON",
		Hidden: true,
		Args:   usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.TimeCommand(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
}
