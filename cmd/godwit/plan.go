package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/units"
)

// demandFlags are a user's demands on a migration for which Godwit chooses the mode.
type demandFlags struct {
	deadline   time.Duration
	bytes      *cli.Parsed[int64]
	noPostCopy bool
	split      time.Duration
	spill      bool
	newInodes  bool
}

func newDemandFlags() *demandFlags { return &demandFlags{bytes: cli.SizeFlag()} }

func (d *demandFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.DurationVar(&d.deadline, "deadline", 0,
		"mode auto: the container must run at the other node within this time (default: none)")
	flags.Var(d.bytes, "max-bytes", "mode auto: send at most this much, such as 500m (default: no limit)")
	flags.BoolVar(&d.noPostCopy, "no-post-copy", false, "mode auto: never split the state over two nodes")
	flags.BoolVar(&d.spill, "spill", false,
		"post-copy, hybrid: also write memory that follows to this node's disk, encrypted, against a reboot")
	flags.BoolVar(&d.newInodes, "new-inodes", false,
		"move a container with open SQLite databases, although their files get new inodes")
	positiveVar(cmd, &d.split, "max-split", 0,
		"post-copy, hybrid: longest time for which both nodes may be needed "+
			"(default: 10s in mode auto, unless this node's agent says otherwise; no bound in other modes)")
}

func (d *demandFlags) fill(request *api.MigrateRequest) {
	request.DeadlineSeconds, request.MaxBytes, request.NoPostCopy = d.deadline.Seconds(), d.bytes.Value,
		d.noPostCopy
	request.MaxSplitSeconds, request.Spill, request.NewInodes = d.split.Seconds(), d.spill, d.newInodes
}

const planLong = `Plan measures a container and the link to another node, and predicts the cost of a
migration in each mode. It moves nothing.

  DOWNTIME      how long the container's processes do not run
  CLIENT WAITS  how long a client waits: until the container runs again, its packet arrives, and the answer
                comes back
  HANDOFF       time from the request until the container runs at the other node
  TOTAL         time until nothing of the container is left on this node
  SENT          bytes sent over the link, and how many of them during the freeze
  CPU           seconds of CPU time, on each of the two nodes
  SPLIT         how long the state is split over the two nodes, and both are needed (--max-split)
  PAGES WAIT    how long threads wait for pages after the handover, summed over all threads; a lower bound if
                the container reads more than it writes

Each figure is the expected value, with the interval that should contain nine of ten migrations. The marked
mode is the one that mode auto, the default of migrate, would take. "godwit migrate --help" explains how
auto chooses, and the flags.`

func newPlanCommand() *cobra.Command {
	request := &api.MigrateRequest{Mode: string(migration.Auto), Forecast: true}
	demands := newDemandFlags()
	var asJSON bool
	var downtime, measure time.Duration
	limit := &cli.Parsed[int64]{Kind: "rate", Parse: units.ParseBandwidth}
	cmd := &cobra.Command{
		Use:   "plan CONTAINER NODE",
		Short: "Predict what a migration would cost in each mode, and which is the best",
		Long:  planLong,
		Example: `  godwit plan web b
  godwit plan web b --measure 10s         # watch longer what it writes
  godwit plan web b --deadline 20s --no-post-copy
  godwit plan web b --max-split 1m        # both nodes may be needed for a minute after the handover
  godwit plan web b --bandwidth-limit 20mbit --json |
    jq '.predictions[] | [.mode, .downtime_seconds.expected]'`,
		Args: cli.Arguments(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Container, request.Node = args[0], args[1]
			request.DowntimeTargetSeconds, request.WatchSeconds = downtime.Seconds(), measure.Seconds()
			request.BandwidthLimitBitsPerSecond = float64(limit.Value)
			demands.fill(request)
			return withAgent(cmd,
				func(agent api.AgentClient) error { return showPlan(cmd, agent, request, asJSON) })
		},
	}
	flags := cmd.Flags()
	demands.add(cmd)
	addRoundFlags(cmd, &downtime, &request.MaxRounds, &request.OnNoConvergence, limit)
	positiveVar(cmd, &measure, "measure", 0,
		"watch the container's writes for this long, and measure the link "+
			"(default: measure what has not been measured yet, for at most a second)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showPlan(cmd *cobra.Command, agent api.AgentClient, request *api.MigrateRequest, asJSON bool) error {
	reply, err := agent.Plan(cmd.Context(), request)
	if err != nil {
		return err
	}
	var p predict.Plan
	if err := json.Unmarshal(reply.PlanJson, &p); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	if asJSON {
		err = printRawJSON(cmd.OutOrStdout(), reply.PlanJson)
	} else {
		err = printForecast(cmd.OutOrStdout(), p)
	}
	if err == nil && !p.Possible {
		return cli.Exit(cli.ExitError, nil)
	}
	return err
}

// printForecast prints the expected cost of a migration.
func printForecast(w io.Writer, p predict.Plan) error {
	verdict := "mode " + string(p.Choice.Mode)
	if !p.Possible {
		verdict = "would be refused"
	}
	fmt.Fprintf(w, "%s: %s -> %s: %s\n", p.Container, p.Source, p.Target, verdict)
	printProblems(w, p.Problems)
	printLink(w, p.Link)
	m := p.Measured
	fmt.Fprintf(w, "  memory  %s, written within", units.FormatBytes(m.PrivateBytes+m.SharedBytes))
	for _, point := range m.Curve {
		fmt.Fprintf(w, "  %gs: %s", point.Seconds, units.FormatBytes(int64(point.Bytes)))
	}
	fmt.Fprintln(w)
	printSpill(w, "  spill   ", p.Plan)
	fmt.Fprintf(w, "  files   %s, layers %d that %s lacks\n\n",
		units.FormatBytes(m.FileTreeBytes), len(p.MissingLayers), p.Target)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tMODE\tDOWNTIME\tCLIENT WAITS\tHANDOFF\tTOTAL\tSENT (FROZEN)\tCPU\tSPLIT\tPAGES "+
		"WAIT")
	for _, one := range p.Predictions {
		printPrediction(table, one, one.Mode == p.Choice.Mode)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	printReasons(w, p)
	return nil
}

func printLink(w io.Writer, l predict.Link) {
	fmt.Fprintf(w, "  link    %s, round trip %s", units.FormatBits(l.BandwidthBitsPerSecond),
		units.FormatSeconds(l.RTTSeconds))
	if l.JitterSeconds > 0 {
		fmt.Fprintf(w, " ± %s", units.FormatSeconds(l.JitterSeconds))
	}
	if l.BackBitsPerSecond > 0 {
		fmt.Fprintf(w, ", back %s", units.FormatBits(l.BackBitsPerSecond))
	}
	if l.Loss > 0 {
		fmt.Fprintf(w, ", %.2g %% sent again", l.Loss*100)
	}
	fmt.Fprintln(w)
}

func printPrediction(w io.Writer, p predict.Prediction, chosen bool) {
	mark := " "
	if chosen {
		mark = "*"
	}
	if !p.Possible {
		fmt.Fprintf(w, "%s\t%s\tnot possible: %s\n", mark, p.Mode, p.Why)
		return
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s (%s)\t%s, %s\t%s\t%s\n", mark, p.Mode, between(p.Downtime),
		between(p.Interruption),
		between(p.Handoff), between(p.Total), units.FormatBytes(int64(p.Bytes.Expected)),
		units.FormatBytes(int64(p.FrozenBytes.Expected)),
		predict.Seconds(p.SourceCPU.Expected), predict.Seconds(p.TargetCPU.Expected), orNone(p.Split),
		orNone(p.Waiting))
}

// printSplits prints for how long both nodes would be needed in each mode that may be chosen, or why a mode
// may not be.
func printSplits(w io.Writer, p predict.Plan) {
	for _, one := range p.Predictions {
		switch {
		case one.Mode == migration.Restart:
		case !one.Possible:
			fmt.Fprintf(w, "  not %-11s %s\n", one.Mode, one.Why)
		case one.Split.High > 0:
			fmt.Fprintf(w, "  %-15s both nodes needed for %s\n", one.Mode, between(one.Split))
		default:
			fmt.Fprintf(w, "  %-15s never needs both nodes\n", one.Mode)
		}
	}
}

// between formats an expected value and its interval.
func between(i predict.Interval) string {
	return fmt.Sprintf("%s (%s-%s)", predict.Seconds(i.Expected), predict.Seconds(i.Low),
		predict.Seconds(i.High))
}

func orNone(i predict.Interval) string {
	if i.High == 0 {
		return "-"
	}
	return predict.Seconds(i.Expected)
}

// printReasons prints the reasons for the choice, and what would be better.
func printReasons(w io.Writer, p predict.Plan) {
	for _, why := range p.Choice.Why[:min(1, len(p.Choice.Why))] {
		fmt.Fprintf(w, "\n  %s\n", why)
	}
	for _, unmet := range p.Choice.Unmet {
		fmt.Fprintf(w, "  cannot be met: %s\n", unmet)
	}
	for _, one := range p.Predictions {
		if one.Mode == p.Choice.Mode {
			fmt.Fprintf(w, "  it would use: rounds %d, codec %s, connections %d", one.Use.Rounds,
				one.Use.Codec, one.Use.Streams)
			if one.Use.CPUs > 0 {
				fmt.Fprintf(w, ", and throttle the container to %.2f processors", one.Use.CPUs)
			}
			fmt.Fprintf(w, "\n  risk: %s\n", one.Risk)
		}
	}
	for _, better := range p.Better {
		fmt.Fprintf(w, "  better: %s\n", better)
	}
}
