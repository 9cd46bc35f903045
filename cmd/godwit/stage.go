package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/units"
)

const stageLong = `Stage prepares a later migration: it brings to another node the image layers that are
missing there and a copy of the container's memory. The container keeps running and barely notices. "godwit
migrate CONTAINER NODE --mode pre-copy" then sends only the memory written since.

With --keep-fresh, the copy is updated again and again, with at most a tenth of the link's time and never
during a migration. Staging the same container at the same node again updates the copy once.

The copy is in the other node's memory, never in a file on its disk, and takes as much room there as the
container does here. A container can be staged at one node at a time. The copy goes when its time is over
(--keep, --keep-fresh), when it is removed, when the container ends or moves, when the agent of either node
ends, and when the link between them is lost. A migration that starts from a copy uses it up, even if the
migration fails.

Layers come from the nearest place: a node that has them, the registry of the image, or this node. They stay
on the other node's disk, for all containers, until the image is removed. With --layers-only no memory is
copied, and any number of nodes can have the layers; "godwit run --stage-to" does the same as soon as a
container runs.

"stage ls" also lists what else is kept for a later migration: the residual memory copy of a container that
has left a node (footprint), and files on a node to which a migration failed (broken). The next attempt does
not send them again; see "godwit agent --help".

If you know where the container will be, --path names the nodes and the time by which it may be at each. The
copy at each node is made in time, with no more of the link than that takes, and updated right before. The
predictions are printed beforehand; if a deadline cannot be met, stage says that the copy will be late and
makes it nevertheless.

If you do not know, --nearest keeps copies at the container's nearest neighbours by round-trip time, and
updates them in turn; --budget bounds the memory of all copies together. Both --path and --nearest follow the
container: after a move, the new node goes on. Copies whose turn has not come are idle ("parked"): they stay
as they are, and only changes are sent when the container comes or the copy is updated. --off, or "stage rm
CONTAINER", ends this.

To stage a container whose name is "ls" or "rm", use its ID.`

const stageExample = `  godwit stage web b                        # one copy, for an hour
  godwit stage web b --keep-fresh 8h --bandwidth-limit 20mbit
  godwit migrate web b --mode pre-copy      # sends what was written since
  godwit stage web c --layers-only          # the image, no memory
  godwit stage web --path b@10m,c@14:30     # at b within ten minutes, and at c by half past two
  godwit stage web --nearest 2 --budget 2GiB
  godwit stage web --off
  godwit stage ls
  godwit stage rm web b`

func newStageCommand() *cobra.Command {
	request := &api.StageRequest{}
	var keep, fresh time.Duration
	var asJSON, detach bool
	limit := &cli.Parsed[int64]{Kind: "rate", Parse: units.ParseBandwidth}
	cmd := &cobra.Command{
		Use:     "stage CONTAINER [NODE]",
		Short:   "Bring layers and a copy of a container's memory to a node ahead of a migration",
		Long:    stageLong,
		Example: stageExample,
	}
	way := addPlacementFlags(cmd)
	cmd.Args = way.stageArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !way.wanted() {
			request.Container, request.Node = args[0], args[1]
			request.KeepSeconds, request.KeepFreshSeconds = keep.Seconds(), fresh.Seconds()
			request.BandwidthLimitBitsPerSecond = float64(limit.Value)
			return withAgent(cmd,
				func(agent api.AgentClient) error { return stage(cmd, agent, request, asJSON, detach) })
		}
		order, err := way.request(args[0], time.Now())
		if err != nil {
			return err
		}
		order.BandwidthLimitBitsPerSecond = float64(limit.Value)
		if cmd.Flags().Changed("keep") {
			order.KeepSeconds = keep.Seconds()
		}
		return withAgent(cmd, func(agent api.AgentClient) error { return place(cmd, agent, order, asJSON) })
	}
	flags := cmd.Flags()
	positiveVar(cmd, &keep, "keep", migration.DefaultKeep,
		"how long the copy stays; with --path: after the last deadline; with --nearest: 30 days unless given")
	flags.DurationVar(&fresh, "keep-fresh", 0,
		"how long to keep the copy up to date; the copy stays at least as long (default: do not update it)")
	flags.Var(limit, "bandwidth-limit", "bandwidth that staging may use, such as 5mbit (default: all)")
	flags.BoolVar(&request.LayersOnly, "layers-only", false, "stage the image's layers, but no memory")
	cmd.MarkFlagsMutuallyExclusive("layers-only", "keep")
	cmd.MarkFlagsMutuallyExclusive("layers-only", "keep-fresh")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.BoolVarP(&detach, "detach", "d", false, "return once staging has started")
	way.exclude(cmd)
	cmd.AddCommand(newStageListCommand(), newStageRemoveCommand())
	return cmd
}

// stage follows a copy until one of its rounds is complete.
func stage(cmd *cobra.Command, agent api.AgentClient, request *api.StageRequest, asJSON, detach bool) error {
	stream, err := agent.Stage(cmd.Context(), request)
	if err != nil {
		return err
	}
	show := &display{out: cmd.ErrOrStderr()}
	var told migration.Stage
	for first := true; ; first = false {
		update, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			show.clear()
			return unstaged(cmd, request, err)
		}
		if err := json.Unmarshal(update.StageJson, &told); err != nil {
			return fmt.Errorf("answer of the agent: %w", err)
		}
		if first && detach {
			break
		}
		show.line(string(told.State), stageLine(told))
	}
	show.clear()
	switch {
	case asJSON:
		err = cli.PrintJSON(cmd.OutOrStdout(), told)
	case told.State != migration.StageReady:
	case told.Kind == migration.LayersCopy:
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s has all layers of its image, %s of them from here\n",
			told.Container, told.Target, units.FormatBytes(told.SentBytes))
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of memory staged at %s, %s sent, until %s\n", told.Container,
			units.FormatBytes(told.MemoryBytes),
			told.Target, units.FormatBytes(told.SentBytes), told.Until.Local().Format(time.DateTime))
	}
	if err == nil && told.State == migration.StageEnded {
		return cli.Exit(cli.ExitError, fmt.Errorf("%s is not staged at %s: %s", told.Container, told.Target,
			plainText(told.Error)))
	}
	return err
}

// unstaged explains what happens to a copy that can no longer be watched.
func unstaged(cmd *cobra.Command, request *api.StageRequest, err error) error {
	switch {
	case cmd.Context().Err() != nil:
		return cli.Exit(cli.ExitSignal, fmt.Errorf("no longer watching; staging goes on: see \"godwit "+
			"stage ls\", "+
			"or stop it with \"godwit stage rm %s %s\"", request.Container, request.Node))
	case status.Code(err) == codes.Unavailable:
		return cli.Exit(cli.ExitError, errors.New("the agent of this node ended, and nothing is staged "+
			"any more; the container runs on"))
	}
	return err
}

// stageLine formats the progress of a copy as one line.
func stageLine(s migration.Stage) string {
	parts := []string{fmt.Sprintf("%6.1f s  %-10s", time.Since(s.Started).Seconds(), s.State)}
	if s.SentBytes > 0 {
		parts = append(parts, units.FormatBytes(s.SentBytes)+" sent")
	}
	if s.State == migration.StageMemory && s.ExpectedBytes > 0 {
		parts = append(parts, fmt.Sprintf("of at most %s", units.FormatBytes(s.ExpectedBytes)))
	}
	return strings.Join(parts, "  ")
}

func newStageListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List staged copies: this node's at other nodes, and other nodes' here",
		Example: "  godwit stage ls --json | jq '.[] | select(.state == \"ready\")'",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.Stages(cmd.Context(), &api.StagesRequest{})
				if err != nil {
					return err
				}
				list := make([]migration.Stage, len(reply.StagesJson))
				for i, document := range reply.StagesJson {
					if err := json.Unmarshal(document, &list[i]); err != nil {
						return fmt.Errorf("answer of the agent: %w", err)
					}
				}
				if asJSON {
					return cli.PrintJSON(cmd.OutOrStdout(), list)
				}
				return printStages(cmd.OutOrStdout(), list)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printStages(w io.Writer, list []migration.Stage) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table,
		"CONTAINER\tKIND\tOF\tAT\tSTATE\tMEMORY\tDISK\tSENT\tROUNDS\tAS OF\tUNTIL\tAHEAD\tWHY")
	for _, s := range list {
		asOf, until := "-", "-"
		if !s.Fresh.IsZero() {
			asOf = units.FormatAge(time.Since(s.Fresh)) + " ago"
		}
		if !s.Until.IsZero() && s.State != migration.StageEnded {
			until = s.Until.Local().Format(time.DateTime)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", s.Container, s.Kind,
			s.Source, s.Target, s.State,
			units.FormatBytes(s.MemoryBytes), units.FormatBytes(s.DiskBytes), units.FormatBytes(s.SentBytes),
			s.Rounds, asOf, until,
			placementText(s.Placement, time.Now()), cmp.Or(plainText(s.Error), "-"))
	}
	return table.Flush()
}

func newStageRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm CONTAINER [NODE]",
		Short: "Remove a copy, or stop staging; the container keeps running",
		Long: `Rm removes a copy and frees its memory or disk space. NODE is the other node: the one that
has the copy, or, if run on that one, the one that has the container. Without NODE, rm removes all copies
made by --path or --nearest and stops making more.

Layers that are still on their way (stage --layers-only, run --stage-to) are cancelled; layers that have
arrived stay until the image is removed. Entries that are finished disappear from the list.`,
		Example: "  godwit stage rm web b\n  godwit stage rm web",
		Args:    cli.Arguments(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &api.UnstageRequest{Container: args[0]}
			if len(args) > 1 {
				request.Node = args[1]
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				_, err := agent.Unstage(cmd.Context(), request)
				return err
			})
		},
	}
}
