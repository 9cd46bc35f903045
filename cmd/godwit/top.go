package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/units"
)

const topLong = `Top measures the containers of this node while it runs: how much memory a migration would
have to move, and how fast that memory changes.

  PRIVATE, SHARED   memory that a migration moves: private to a process, or shared but not backed by a file
  FILES             mapped files; a migration does not send these pages
  WRITTEN IN        the dirtying curve: how much memory is written at least once within 0.1, 1, 10 and 60
                    seconds. Memory written repeatedly counts once. "-": not watched for that long yet
  ZERO, TWICE       zero pages, and duplicate pages (from a sample); sending them costs next to nothing
  ZSTD              size of the rest after compression
  FILES/s           bytes written to files per second

Top stops each process for a fraction of a millisecond when it starts, and costs about a microsecond for
each page's first write in a minute. Nothing is left behind in the processes when it ends. A staged container
is measured by comparing a sample of its pages; a container that is being moved is not measured.`

func newTopCommand() *cobra.Command {
	var asJSON, once bool
	var every, window time.Duration
	cmd := &cobra.Command{
		Use:   "top [CONTAINER]",
		Short: "Show containers' memory and how fast they write to it",
		Long:  topLong,
		Example: `  godwit top
  godwit top web --window 10s --once
  godwit top --json | jq '.[].dirtying_curve'`,
		Args: cli.Arguments(cobra.MaximumNArgs(1)),
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print JSON, once")
	flags.BoolVar(&once, "once", false,
		"print the table once (default if the output is not a terminal and --interval is not given)")
	flags.DurationVar(&every, "interval", 2*time.Second, "how often the table is printed")
	flags.DurationVar(&window, "window", 100*time.Millisecond,
		"how long to watch containers' writes before the first table: 100ms, 1s, 10s or 1m")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &api.TopRequest{WindowSeconds: window.Seconds()}
		if len(args) > 0 {
			request.Container = args[0]
		}
		if every < 100*time.Millisecond || window < 0 || window > time.Minute {
			return cli.Usage(fmt.Errorf("--interval must be at least 100ms, --window at most 1m"))
		}
		if !flags.Changed("once") && !flags.Changed("interval") && !isTerminal(cmd.OutOrStdout()) {
			once = true
		}
		return withAgent(cmd, func(agent api.AgentClient) error {
			for {
				measured, err := topOnce(cmd.Context(), agent, request)
				if err != nil {
					return err
				}
				if asJSON {
					return cli.PrintJSON(cmd.OutOrStdout(), measured)
				}
				if err := printTop(cmd.OutOrStdout(), measured); err != nil || once {
					return err
				}
				select {
				case <-time.After(every):
				case <-cmd.Context().Done():
					return nil
				}
				fmt.Fprintln(cmd.OutOrStdout())
			}
		})
	}
	return cmd
}

func topOnce(ctx context.Context, agent api.AgentClient, request *api.TopRequest) ([]predict.Measured,
	error) {
	reply, err := agent.Top(ctx, request)
	if err != nil {
		return nil, err
	}
	measured := make([]predict.Measured, len(reply.MeasuredJson))
	for i, document := range reply.MeasuredJson {
		if err := json.Unmarshal(document, &measured[i]); err != nil {
			return nil, fmt.Errorf("answer of the agent: %w", err)
		}
	}
	return measured, nil
}

func printTop(w io.Writer, measured []predict.Measured) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "CONTAINER\tPROCESSES\tCPUS\tPRIVATE\tSHARED\tFILES\tWRITTEN IN")
	for i, window := range predict.Windows() {
		if i > 0 {
			fmt.Fprint(table, "\t")
		}
		fmt.Fprintf(table, " %gs", window)
	}
	fmt.Fprintln(table, "\tZERO\tTWICE\tZSTD\tFILES/s")
	for _, m := range measured {
		name := m.Name
		if m.State != "" {
			name += " (" + m.State + ")"
		}
		fmt.Fprintf(table, "%s\t%d\t%.2f\t%s\t%s\t%s", name, m.Processes, m.CPUs,
			units.FormatBytes(m.PrivateBytes), units.FormatBytes(m.SharedBytes),
			units.FormatBytes(m.FileBytes))
		for _, window := range predict.Windows() {
			fmt.Fprintf(table, "\t%s", writtenWithin(m.Curve, window))
		}
		if m.SampledPages > 0 {
			fmt.Fprintf(table, "\t%.0f %%\t%.0f %%\t%.0f %%", m.ZeroShare*100, m.DuplicateShare*100,
				m.Ratio*100)
		} else {
			fmt.Fprint(table, "\t-\t-\t-")
		}
		fmt.Fprintf(table, "\t%s\n", units.FormatBytes(int64(m.FilesChangedPerSecond)))
	}
	return table.Flush()
}

// writtenWithin formats one point of the curve, if that point was measured.
func writtenWithin(curve predict.Curve, window float64) string {
	for _, point := range curve {
		if point.Seconds == window {
			return units.FormatBytes(int64(point.Bytes))
		}
	}
	return "-"
}
