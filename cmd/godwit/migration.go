package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/units"
)

func newMigrationCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migration",
		Short: "Show, change and resolve migrations",
		Long: `Show, change and resolve current and past migrations. Name a migration by its ID, or by a
prefix that no other ID has.`,
	}
	cmd.AddCommand(newMigrationListCommand(), newMigrationShowCommand(), newMigrationWatchCommand(),
		newMigrationSetCommand(), newMigrationSwitchCommand(), newMigrationCancelCommand(),
		newMigrationResolveCommand())
	return cmd
}

func newMigrationListCommand() *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the migrations from and to this node, the latest first",
		Example: "  godwit migration ls --json | jq '.[].downtime_seconds'",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all || asksController(cmd) {
				return clusterIntents(cmd, asJSON)
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				reports, err := reports(cmd.Context(), agent)
				if err != nil {
					return err
				}
				slices.Reverse(reports) // the latest first
				if asJSON {
					return cli.PrintJSON(cmd.OutOrStdout(), reports)
				}
				return printReports(cmd.OutOrStdout(), reports)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&all, "all", "A", false,
		"list the controller's migrations: queued, under way, recommended and past, with the reason of each")
	return cmd
}

func reports(ctx context.Context, agent api.AgentClient) ([]migration.Report, error) {
	stream, err := agent.Migrations(ctx, &api.MigrationsRequest{})
	if err != nil {
		return nil, err
	}
	list := []migration.Report{} // an empty list prints as [] instead of null
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		var report migration.Report
		if err := json.Unmarshal(reply.ReportJson, &report); err != nil {
			return nil, fmt.Errorf("answer of the agent: %w", err)
		}
		list = append(list, report)
	}
}

func printReports(w io.Writer, list []migration.Report) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MIGRATION\tCONTAINER\tFROM\tTO\tMODE\tRESULT\tFROZEN\tTOTAL\tAGO")
	for _, r := range list {
		downtime, total := "-", "-"
		if r.Result == migration.Moved {
			downtime, total = units.FormatSeconds(r.DowntimeSeconds), units.FormatSeconds(r.TotalSeconds)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Migration, r.Container, r.Source,
			r.Target, r.Mode, r.Result, downtime, total, units.FormatAge(time.Since(r.Started)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, r := range list {
		if r.Alarm != "" {
			fmt.Fprintf(w, "ALARM %s: %s\n", r.Migration, r.Alarm)
		}
	}
	return nil
}

func newMigrationShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show MIGRATION",
		Short:   "Show the report of a migration",
		Example: "  godwit migration show 3f2a81c09b7d5e60 --json",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				list, err := reports(cmd.Context(), agent)
				if err != nil {
					return err
				}
				report, err := named(list, args[0])
				if err != nil {
					return err
				}
				if asJSON {
					return cli.PrintJSON(cmd.OutOrStdout(), report)
				}
				printReport(cmd.OutOrStdout(), report)
				printReason(cmd.OutOrStdout(), report)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// named finds a report by the migration's id or a prefix of it.
func named(list []migration.Report, id string) (migration.Report, error) {
	var alike []migration.Report
	for _, report := range list {
		if report.Migration == id {
			return report, nil
		}
		if id != "" && strings.HasPrefix(report.Migration, id) {
			alike = append(alike, report)
		}
	}
	switch len(alike) {
	case 0:
		return migration.Report{},
			fmt.Errorf("no migration %q on this node; \"godwit migration ls\" lists them", id)
	case 1:
		return alike[0], nil
	}
	return migration.Report{}, fmt.Errorf("%d migrations begin with %s: give more of its id", len(alike), id)
}

func newMigrationWatchCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "watch MIGRATION",
		Short:   "Follow a migration until it has ended",
		Example: "  godwit migration watch 3f2a81c09b7d5e60",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd,
				func(agent api.AgentClient) error { return watch(cmd, agent, args[0], asJSON) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

const setLong = `Set changes how a migration from this node goes on. It takes effect at once, or with the
next round.`

func newMigrationSetCommand() *cobra.Command {
	var downtime time.Duration
	var rounds int32
	var choice string
	limit := &cli.Parsed[int64]{Kind: "rate", Parse: units.ParseBandwidth}
	cmd := &cobra.Command{
		Use:   "set MIGRATION",
		Short: "Change the settings of a migration under way",
		Long:  setLong,
		Example: `  godwit migration set 3f2a81c09b7d5e60 --bandwidth-limit 50mbit
  godwit migration set 3f2a81c09b7d5e60 --bandwidth-limit unlimited --downtime-target 500ms
  godwit migration set 3f2a81c09b7d5e60 --max-rounds 1      # freeze it when this round is over`,
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &api.SetRequest{Migration: args[0]}
			flags := cmd.Flags()
			if flags.NFlag() == 0 {
				return cli.Usage(errors.New("say what to change, for example --bandwidth-limit 50mbit"))
			}
			if flags.Changed("downtime-target") {
				request.DowntimeTargetSeconds = new(downtime.Seconds())
			}
			if flags.Changed("max-rounds") {
				request.MaxRounds = &rounds
			}
			if limit.WasSet {
				request.BandwidthLimitBitsPerSecond = new(float64(limit.Value))
			}
			if flags.Changed("on-no-convergence") {
				request.OnNoConvergence = &choice
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				_, err := agent.Set(cmd.Context(), request)
				return err
			})
		},
	}
	addRoundFlags(cmd, &downtime, &rounds, &choice, limit)
	cli.OnlyChanges(cmd)
	return cmd
}

// addRoundFlags adds the flags that bound the rounds of a pre-copy.
func addRoundFlags(cmd *cobra.Command, downtime *time.Duration, rounds *int32, choice *string,
	limit *cli.Parsed[int64]) {
	flags := cmd.Flags()
	positiveVar(cmd, downtime, "downtime-target", migration.DefaultDowntimeTarget,
		"pre-copy, hybrid: freeze when the freeze will take no longer than this")
	flags.Int32Var(rounds, "max-rounds", 0,
		"pre-copy, hybrid: freeze after this many rounds (default: as many as help)")
	flags.StringVar(choice, "on-no-convergence", "",
		"pre-copy: what to do when the downtime target cannot be met: "+
			"stop-and-copy, throttle, hybrid or give-up (default: stop-and-copy)")
	completeValues(cmd, "on-no-convergence", string(migration.StopAndCopy), string(migration.Throttle),
		string(migration.TurnHybrid), string(migration.GiveUp))
	flags.Var(limit, "bandwidth-limit", "bandwidth that the migration may use, such as 50mbit (default: all)")
}

// completeValues makes the shell offer the values of a flag instead of files.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // Only where there is no such flag.
	}
}

func newMigrationCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel MIGRATION",
		Short: "Undo a migration; the container keeps running at the source",
		Long: `Cancel undoes a migration that is under way. Once the container has been handed over, cancel
is too late and fails.

With --controller, cancel also ends a migration that waits for its turn. If one is under way, the controller
asks the source to cancel it; "godwit migration ls --all" shows how it ends. A container whose drain, or
another move that the controller decided on, was cancelled stays where it is until a user moves it or its node
is drained again.`,
		Example: "  godwit migration cancel 3f2a81c09b7d5e60\n" +
			"  godwit --controller 192.0.2.1 migration cancel 3f2a81c09b7d5e60",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if asksController(cmd) {
				return cancelByController(cmd, args[0])
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				_, err := agent.Cancel(cmd.Context(), &api.MigrationRequest{Migration: args[0]})
				return err
			})
		},
	}
}

func newMigrationSwitchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "switch MIGRATION",
		Short: "Hand the container over now and send the rest of its memory afterwards",
		Long: `Switch ends the rounds of a migration in mode pre-copy or hybrid, including the current
round. The container is frozen while its execution state is sent, and resumes at the other node; the rest of
its memory follows, as in mode post-copy. "godwit migrate --help" explains the risks. Run switch on the
source node.`,
		Example: "  godwit migration switch 3f2a81c09b7d5e60",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				_, err := agent.Switch(cmd.Context(), &api.MigrationRequest{Migration: args[0]})
				return err
			})
		},
	}
}

const resolveLong = `Resolve decides where a container runs if its two nodes cannot find out, because one of
them is gone for good.

A migration is in doubt if contact was lost during the handover: the container may or may not run at the
target. The source keeps its copy frozen and asks the target until the target answers, so there is nothing to
decide as long as the target may come back. If you know that the target is lost, run "resolve --runs-at
source" on the source. If you know that the container runs at the target, "resolve --runs-at target" removes
the frozen copy on the source.

Resolve asks the other node first, and that node must agree. For "--runs-at source" the target must confirm
that nothing of the container runs there or ever will; for "--runs-at target" it must confirm that the
container runs there. If the other node cannot be reached, or cannot tell, resolve refuses unless --force is
given. With --force, a wrong decision makes two copies, or none. The command prints the time of the last
contact with the other node, and the possible consequences.

After the handover in post-copy or hybrid, part of the container's memory may be at the source alone. If the
source is lost for good, run "resolve --runs-at target" on the target and choose what happens without that
memory: with "--missing-pages fail" the container runs on, and each access to a missing page fails (SIGBUS);
with "--missing-pages kill" Godwit kills it. If the target is lost for good, "resolve --runs-at source" on the
source lets the container run on from the moment of the freeze.`

func newMigrationResolveCommand() *cobra.Command {
	request := &api.ResolveRequest{}
	cmd := &cobra.Command{
		Use:   "resolve MIGRATION --runs-at source|target",
		Short: "Decide a migration that is in doubt",
		Long:  resolveLong,
		Example: "  godwit migration resolve 3f2a81c09b7d5e60 --runs-at source\n" +
			"  godwit migration resolve 3f2a81c09b7d5e60 --runs-at source --force     # the target is " +
			"lost for good\n" +
			"  godwit migration resolve 3f2a81c09b7d5e60 --runs-at target --missing-pages kill",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Migration = args[0]
			if request.RunsAt != string(migration.Source) && request.RunsAt != string(migration.Target) {
				return cli.Usage(errors.New("say where the container runs: " +
					"--runs-at source or --runs-at target"))
			}
			if how := request.MissingPages; how != "" && how != "fail" && how != "kill" {
				return cli.Usage(fmt.Errorf("--missing-pages %s: say fail or kill", how))
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.Resolve(cmd.Context(), request)
				if err == nil && reply.Notice != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), reply.Notice)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&request.RunsAt, "runs-at", "", "where the container runs: source or target")
	cmd.Flags().StringVar(&request.MissingPages, "missing-pages", "",
		"what to do if part of the container's memory is lost with the source: fail or kill")
	cmd.Flags().BoolVar(&request.Force, "force", false,
		"decide even if the other node cannot be reached, or cannot tell")
	completeValues(cmd, "runs-at", string(migration.Source), string(migration.Target))
	completeValues(cmd, "missing-pages", "fail", "kill")
	return cmd
}
