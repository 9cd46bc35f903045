package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

const migrateLong = `Migrate moves a running container from this node to another: memory, processes, open files, its file system and
volumes, its address and its TCP connections. Its users notice a pause.

Until the container runs at the other node, any failure leaves it running here. It never runs twice. If contact is lost
at the very moment of the handover, the container stays frozen here until the other node can be asked ("in doubt").

Exit codes: 0 it moved; 1 it did not, and runs here as before; 3 in doubt, or this node's agent ended meanwhile; 130 you
pressed ^C, and the migration goes on.`

const migrateExample = `  godwit migrate web b
  godwit migrate web b --dry-run          # would it work, and what would move
  godwit migrate web b --json | jq .downtime_seconds
  godwit migrate --detach web b           # prints an id for "godwit migration watch"`

func newMigrateCommand() *cobra.Command {
	request := &api.MigrateRequest{}
	var asJSON, dryRun, detach bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "migrate CONTAINER NODE",
		Short:   "Move a running container to another node",
		Long:    migrateLong,
		Example: migrateExample,
		Args:    usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Container, request.Node, request.TimeoutSeconds = args[0], args[1], timeout.Seconds()
			return withAgent(cmd, func(agent api.AgentClient) error {
				if dryRun {
					return plan(cmd, agent, request, asJSON)
				}
				return migrate(cmd, agent, request, asJSON, detach)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Mode, "mode", string(migration.Cold), "how: cold")
	flags.BoolVar(&asJSON, "json", false, "print the report as JSON")
	flags.BoolVar(&dryRun, "dry-run", false, "only tell whether it would work and what would move")
	flags.BoolVarP(&detach, "detach", "d", false, "print the migration's id and return")
	flags.DurationVar(&timeout, "timeout", 0, "undo it if the container has not been handed over by then (default: none)")
	return cmd
}

func migrate(cmd *cobra.Command, agent api.AgentClient, request *api.MigrateRequest, asJSON, detach bool) error {
	reply, err := agent.Migrate(cmd.Context(), request)
	if err != nil {
		return err
	}
	if detach {
		fmt.Fprintln(cmd.OutOrStdout(), reply.Migration)
		return nil
	}
	return watch(cmd, agent, reply.Migration, asJSON)
}

// watch shows a migration until it has ended, and makes its result the exit code.
func watch(cmd *cobra.Command, agent api.AgentClient, id string, asJSON bool) error {
	stream, err := agent.Watch(cmd.Context(), &api.MigrationRequest{Migration: id})
	if err != nil {
		return err
	}
	display := &display{out: cmd.ErrOrStderr(), id: id}
	for {
		update, err := stream.Recv()
		if err != nil {
			display.clear()
			return unwatched(cmd, id, err)
		}
		if len(update.ReportJson) > 0 {
			display.clear()
			return showReport(cmd, update.ReportJson, asJSON)
		}
		if err := display.update(update.ProgressJson); err != nil {
			return err
		}
	}
}

// unwatched tells what becomes of a migration that can no longer be watched.
func unwatched(cmd *cobra.Command, id string, err error) error {
	switch {
	case cmd.Context().Err() != nil:
		return &codedError{exitSignal, fmt.Errorf("no longer watching; the migration goes on: see \"godwit migration watch %s\", "+
			"or stop it with \"godwit migration cancel %s\"", id, id)}
	case status.Code(err) == codes.Unavailable:
		return &codedError{exitInDoubt, fmt.Errorf("the agent of this node ended; when it runs again, it finishes or undoes the "+
			"migration: see \"godwit migration watch %s\"", id)}
	}
	return err
}

func showReport(cmd *cobra.Command, document []byte, asJSON bool) error {
	var report migration.Report
	if err := json.Unmarshal(document, &report); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	if asJSON {
		if err := printRawJSON(cmd.OutOrStdout(), document); err != nil {
			return err
		}
	} else {
		printReport(cmd.OutOrStdout(), report)
	}
	switch report.Result {
	case migration.Moved:
		return nil
	case migration.ResultDoubt:
		return &codedError{exitInDoubt, fmt.Errorf("migration %s is in doubt: %s", report.Migration, errorOf(report))}
	}
	return &codedError{exitError, fmt.Errorf("%s did not move: %s", report.Container, errorOf(report))}
}

func errorOf(report migration.Report) string {
	if report.Error == nil {
		return string(report.Result)
	}
	return plainText(*report.Error)
}

func newMigrationCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migration",
		Short: "Look at migrations, under way and past, and decide about them",
	}
	cmd.AddCommand(newMigrationListCommand(), newMigrationShowCommand(), newMigrationWatchCommand(),
		newMigrationCancelCommand(), newMigrationResolveCommand())
	return cmd
}

func newMigrationListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the migrations from and to this node",
		Example: "  godwit migration ls --json | jq '.[].downtime_seconds'",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				reports, err := reports(cmd, agent)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), reports)
				}
				return printReports(cmd.OutOrStdout(), reports)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func reports(cmd *cobra.Command, agent api.AgentClient) ([]migration.Report, error) {
	reply, err := agent.Migrations(cmd.Context(), &api.MigrationsRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]migration.Report, len(reply.ReportsJson))
	for i, document := range reply.ReportsJson {
		if err := json.Unmarshal(document, &list[i]); err != nil {
			return nil, fmt.Errorf("answer of the agent: %w", err)
		}
	}
	return list, nil
}

func printReports(w io.Writer, list []migration.Report) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MIGRATION\tCONTAINER\tFROM\tTO\tMODE\tRESULT\tFROZEN\tTOTAL\tAGO")
	for _, r := range list {
		downtime, total := "-", "-"
		if r.Result == migration.Moved {
			downtime, total = formatSeconds(r.DowntimeSeconds), formatSeconds(r.TotalSeconds)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Migration, r.Container, r.Source, r.Target, r.Mode,
			r.Result, downtime, total, formatAge(time.Since(r.Started)))
	}
	return table.Flush()
}

func newMigrationShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show MIGRATION",
		Short:   "Show the report of a migration",
		Example: "  godwit migration show 3f2a81c09b7d5e60 --json",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				list, err := reports(cmd, agent)
				if err != nil {
					return err
				}
				for _, report := range list {
					if report.Migration == args[0] {
						if asJSON {
							return printJSON(cmd.OutOrStdout(), report)
						}
						printReport(cmd.OutOrStdout(), report)
						printReason(cmd.OutOrStdout(), report)
						return nil
					}
				}
				return fmt.Errorf("no migration %s on this node; \"godwit migration ls\" lists them", args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newMigrationWatchCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "watch MIGRATION",
		Short:   "Follow a migration until it has ended",
		Example: "  godwit migration watch 3f2a81c09b7d5e60",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error { return watch(cmd, agent, args[0], asJSON) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

func newMigrationCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel MIGRATION",
		Short: "Stop a migration; the container runs on where it is",
		Long: "Cancel undoes a migration that is under way. Once the container has been handed over it is too late, and you\n" +
			"are told so.",
		Example: "  godwit migration cancel 3f2a81c09b7d5e60",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				_, err := agent.Cancel(cmd.Context(), &api.MigrationRequest{Migration: args[0]})
				return err
			})
		},
	}
}

const resolveLong = `Resolve decides where a container runs when its two nodes cannot find out, because one of them is gone for good.

A migration is in doubt when contact was lost while the container was handed over: it may run at the target, or not. The
source keeps it frozen and asks the target until it gets an answer, so there is nothing to decide as long as the target
may come back. If you know that the target is lost, run "resolve --runs-at source" on the source. If you know that the container
runs at the target, "--runs-at target" removes the frozen copy here. A wrong answer makes two copies, or none.`

func newMigrationResolveCommand() *cobra.Command {
	request := &api.ResolveRequest{}
	cmd := &cobra.Command{
		Use:     "resolve MIGRATION --runs-at source|target",
		Short:   "Decide a migration that is in doubt",
		Long:    resolveLong,
		Example: "  godwit migration resolve 3f2a81c09b7d5e60 --runs-at source",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Migration = args[0]
			if request.RunsAt != string(migration.Source) && request.RunsAt != string(migration.Target) {
				return &codedError{exitUsage, errors.New("say where it runs: --runs-at source or --runs-at target")}
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				_, err := agent.Resolve(cmd.Context(), request)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&request.RunsAt, "runs-at", "", "source or target")
	return cmd
}

// display shows how far a migration is: one line that changes on a terminal, a line per phase elsewhere.
type display struct {
	out   io.Writer
	id    string
	phase string
	shown bool
}

func (d *display) terminal() bool {
	file, ok := d.out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (d *display) update(document []byte) error {
	var p migration.Progress
	if err := json.Unmarshal(document, &p); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	if d.terminal() {
		fmt.Fprintf(d.out, "\r\033[K%s", progressLine(p))
		d.shown = true
		return nil
	}
	if d.phase == "" {
		fmt.Fprintln(d.out, "migration", d.id)
	}
	if p.Phase != d.phase {
		d.phase = p.Phase
		p.Rate, p.LeftTime = 0, 0 // Little has been seen of a phase that just began.
		fmt.Fprintln(d.out, progressLine(p))
	}
	return nil
}

func (d *display) clear() {
	if d.shown {
		fmt.Fprint(d.out, "\r\033[K")
	}
}

// plan tells whether a migration would work.
func plan(cmd *cobra.Command, agent api.AgentClient, request *api.MigrateRequest, asJSON bool) error {
	reply, err := agent.Plan(cmd.Context(), request)
	if err != nil {
		return err
	}
	var p migration.Plan
	if err := json.Unmarshal(reply.PlanJson, &p); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	if asJSON {
		err = printRawJSON(cmd.OutOrStdout(), reply.PlanJson)
	} else {
		printPlan(cmd.OutOrStdout(), p)
	}
	if err == nil && !p.Possible {
		return &codedError{code: exitError}
	}
	return err
}
