package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/units"
)

const migrateLong = `Migrate moves a running container from this node to another, with its memory,
processes, open files, file system, volumes, address and TCP connections. Its users notice a pause.

Modes:
  auto       the best of the next four modes for this container and this link (see below)
  cold       freezes the container while all of its memory is sent
  pre-copy   sends the memory in rounds while the container runs, each round with the pages written during the
             one before. The freeze covers only the last writes. If the container writes faster than the link
             can send, --on-no-convergence decides what happens.
  post-copy  freezes the container only to send its execution state. It resumes at the other node at once,
             and its memory follows; pages that it waits for are sent first.
  hybrid     does rounds as in pre-copy as long as they help, then sends the rest as in post-copy
  restart    moves no processes: it stops the container and starts it at the other node from the same files.
             Use it for containers of godwit run that cannot be checkpointed (see below).

Mode auto predicts the cost of each mode ("godwit plan" shows the predictions) and takes the mode in which
clients wait least for an answer. Among modes that are equally good (within 10 % plus 10 ms) it takes the
mode that finishes first. It keeps to --deadline, --max-bytes and --bandwidth-limit, and never restarts a
container.

Auto takes post-copy or hybrid only if they are clearly better, and if it predicts that both nodes are needed
for at most 10 seconds, or --max-split. Clearly better means that without them the freeze would exceed
--downtime-target, and clients would wait a fifth and 20 ms longer than with them. Of the two, auto takes the
mode that finishes first. If both take about as long, and Godwit has watched the container for ten seconds
("godwit top"), auto takes the mode that splits the state for the shorter time. --no-post-copy rules out both.

Auto decides again during the rounds, if they do not bring the freeze down to the target, or if the time or
the bytes run out. The report contains each decision with its numbers.

Volumes: --volumes sets one of these for all volumes, or for single ones by name or by path in the container.
  move    moves the volume with the container and removes it here, including host directories. Two kinds of
          host directory stay: those that the container can only read are copied and also stay here, and those
          of other engines' containers are not copied. Godwit recognises a volume that both nodes mount, and
          does not copy it: one node writes a random token there, which the other must find and answer in
          place. Godwit never overwrites data that the other node already has.
  shared  requires that both nodes mount the volume; the migration is refused if that cannot be proven.
  skip    leaves the volume here. The container gets the volume that exists there, or an empty one.
The content of a tmpfs moves with the container, unless skip leaves it behind.

Open SQLite databases: a process knows an open database by the inode of its file, which changes with the
move. If the process then opened the database once more, its connections would not see each other's locks,
and could destroy the database. So migrate refuses a container with an open database, and names the process
and the file, unless both nodes see the same inodes on the database's storage. Mode restart moves such a
container; --new-inodes moves it in the other modes. Use --new-inodes only if each process opens the database
once, and the database is in WAL mode or the process only reads, or if the process closes all connections to
the database before it opens the next. With a rollback journal, a connection from before the move can read
but not write.

Until the container runs at the other node, any failure leaves it running here. It never runs twice, unless an
operator decides wrongly (godwit migration resolve). If the nodes lose contact at the very moment of the
handover, the container stays frozen here until the other node answers ("in doubt").

After the handover in post-copy or hybrid, the container's state is split over two nodes until its memory has
followed (phase "drain", seconds to minutes). If the link breaks during that time, the container waits for the
missing pages and goes on when the link is back. If this node is lost for good, so are the pages that have
not followed. If the other node is lost for good, so is the container's work since the handover. The
other modes have no such risk.

--max-split bounds this time. If a mode is predicted to need both nodes for longer, migrate refuses it, or
does not choose it. If the rounds show that the rest would take longer, they go on, or the container is frozen
while the rest is sent. A node's agent may leave these modes to users, or forbid them (godwit agent
--post-copy).

With --spill, this node also writes the memory that follows to its disk. The memory is encrypted with a key
that only the agents of both nodes have, in memory. Once all of it is written, a reboot of this node loses
none of it; the report says when. The disk needs as much room as the memory; migrate checks that first.

In mode restart, Godwit copies the files while the container runs, as often as that helps, or --checkpoints
times. Then it stops the container with the container's stop signal and grace period (run --stop-signal,
--stop-timeout, or the image's), copies the last changes, and starts the container at the other node. The
container's connections end as with any stop; clients that connect meanwhile wait.

The container then has to become healthy there: its health check must succeed (run --health-cmd, or the
image's). Without a health check, it must listen on all the ports on which it listened before; if it had no
ports, it must run for 3 seconds. If it is not healthy in time (run --start-timeout), Godwit kills it there,
discards its writes there, and starts it again here with its files as it had left them. Its memory, including
/dev/shm, is lost as with any stop.

Exit codes: 0 the container moved; 1 it did not, and runs here as before; 3 the migration is in doubt, or this
node's agent ended meanwhile; 130 you pressed ^C, and the migration goes on.`

const migrateExample = `  godwit migrate web b
  godwit migrate web b --dry-run                             # would it work, and what would move?
  godwit migrate web b --json | jq .downtime_seconds
  godwit migrate web b --no-post-copy --max-bytes 500m       # never split the state over two nodes
  godwit migrate web b --deadline 20s                        # it must run there within 20 seconds
  godwit migrate web b --mode pre-copy --downtime-target 50ms
  godwit migrate web b --mode post-copy                      # shortest freeze, however much memory there is
  godwit migrate web b --mode hybrid --max-split 30s         # need both nodes for at most 30 seconds
  godwit migrate web b --mode post-copy --spill              # a reboot of this node loses no memory
  godwit migrate web b --mode pre-copy --on-no-convergence hybrid
  godwit migrate web b --mode pre-copy --keep-footprint 2h   # on return, unchanged memory is not sent again
  godwit migrate web b --mode restart --checkpoints 3        # stop here and start there
  godwit migrate web b --volumes data=shared,/cache=skip     # all other volumes move
  godwit migrate web b --new-inodes                          # web opens each SQLite database only once
  godwit migrate --detach web b                              # prints an ID for "godwit migration watch"`

func newMigrateCommand() *cobra.Command {
	request := &api.MigrateRequest{}
	var asJSON, dryRun, detach bool
	demands := newDemandFlags()
	var timeout, downtime, residual time.Duration
	var checkpoints int32
	limit := &cli.Parsed[int64]{Kind: "rate", Parse: units.ParseBandwidth}
	cmd := &cobra.Command{
		Use:     "migrate CONTAINER NODE",
		Short:   "Move a running container to another node",
		Long:    migrateLong,
		Example: migrateExample,
		Args:    cli.Arguments(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Container, request.Node, request.TimeoutSeconds = args[0], args[1], timeout.Seconds()
			request.DowntimeTargetSeconds, request.KeepFootprintSeconds = downtime.Seconds(),
				residual.Seconds()
			request.BandwidthLimitBitsPerSecond = float64(limit.Value)
			if err := errors.Join(checkModeFlags(cmd, request.Mode),
				checkCheckpoints(checkpoints)); err != nil {
				return err
			}
			if asksController(cmd) {
				if err := onlyMode(cmd); err != nil {
					return err
				}
				move := &api.MoveRequest{Container: args[0], Node: args[1], Mode: request.Mode}
				return moveByController(cmd, move, asJSON, detach)
			}
			demands.fill(request)
			if request.Checkpoints = checkpoints; checkpoints == 0 && cmd.Flags().Changed("checkpoints") {
				request.Checkpoints = migration.NoCheckpoints
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				if dryRun {
					return plan(cmd, agent, request, asJSON)
				}
				return migrate(cmd, agent, request, asJSON, detach)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Mode, "mode", string(migration.Auto),
		"auto, cold, pre-copy, post-copy, hybrid or restart")
	completeValues(cmd, "mode", string(migration.Auto), string(migration.Cold), string(migration.PreCopy),
		string(migration.PostCopy), string(migration.Hybrid), string(migration.Restart))
	demands.add(cmd)
	flags.Int32Var(&checkpoints, "checkpoints", 0,
		"mode restart: how often to copy the files while the container runs; 0: never "+
			"(default: until the rest is small, or stops shrinking)")
	addRoundFlags(cmd, &downtime, &request.MaxRounds, &request.OnNoConvergence, limit)
	flags.DurationVar(&residual, "keep-footprint", 0,
		"how long this node keeps a residual copy of the container's memory, to speed up a later pre-copy "+
			"back (default: it keeps none)")
	addVolumesFlag(cmd, &request.Volumes)
	flags.BoolVar(&asJSON, "json", false, "print the report as JSON")
	flags.BoolVar(&dryRun, "dry-run", false,
		"only show whether the migration would work, and what would move")
	flags.BoolVarP(&detach, "detach", "d", false, "print the migration's ID and return")
	flags.BoolVar(&request.Wait, "wait", false,
		"wait for the container's previous migration to finish (default: refuse)")
	flags.DurationVar(&timeout, "timeout", 0,
		"undo the migration if the container has not been handed over by then (default: none)")
	return cmd
}

// checkModeFlags refuses flags that have no effect in a mode.
func checkModeFlags(cmd *cobra.Command, mode string) error {
	useless := map[migration.Mode][]string{
		migration.Auto: {"checkpoints"},
		migration.Cold: {
			"downtime-target", "max-rounds", "on-no-convergence", "checkpoints", "max-split", "spill",
		},
		migration.PreCopy:  {"checkpoints"},
		migration.PostCopy: {"on-no-convergence", "checkpoints"},
		migration.Hybrid:   {"checkpoints"},
		migration.Restart: {
			"max-rounds", "on-no-convergence", "keep-footprint", "max-split", "spill", "new-inodes",
		},
	}
	flags := useless[migration.Mode(mode)]
	if mode != string(migration.Auto) {
		flags = append(flags, "deadline", "max-bytes", "no-post-copy")
	}
	for _, flag := range flags {
		if cmd.Flags().Changed(flag) {
			return cli.Usage(fmt.Errorf("--%s means nothing in mode %s", flag, mode))
		}
	}
	return nil
}

// onlyMode refuses flags that a controller does not pass on.
func onlyMode(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "mode", "json", "detach", "controller", "controller-token":
		default:
			err = errors.Join(err, cli.Usage(fmt.Errorf("--%s does not work with --controller: use it "+
				"at the "+
				"node that has the container", flag.Name)))
		}
	})
	return err
}

// checkCheckpoints refuses a meaningless number as an error of usage.
func checkCheckpoints(n int32) error {
	if n >= 0 && n <= migration.MaxMaxRounds {
		return nil
	}
	return cli.Usage(fmt.Errorf("--checkpoints %d: must be from 0 to %d", n, migration.MaxMaxRounds))
}

func migrate(cmd *cobra.Command, agent api.AgentClient, request *api.MigrateRequest, asJSON,
	detach bool) error {
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

// unwatched explains what happens to a migration that can no longer be watched.
func unwatched(cmd *cobra.Command, id string, err error) error {
	switch {
	case cmd.Context().Err() != nil:
		return cli.Exit(cli.ExitSignal, fmt.Errorf("no longer watching; the migration goes on: see "+
			"\"godwit migration watch %s\", "+
			"or stop it with \"godwit migration cancel %s\"", id, id))
	case status.Code(err) == codes.Unavailable:
		return cli.Exit(exitInDoubt, fmt.Errorf("the agent of this node ended; when it runs again, it "+
			"finishes or undoes the "+
			"migration: see \"godwit migration watch %s\"", id))
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
		return cli.Exit(exitInDoubt, fmt.Errorf("migration %s is in doubt: %s", report.Migration,
			errorOf(report)))
	}
	return cli.Exit(cli.ExitError, fmt.Errorf("%s did not move: %s", report.Container, errorOf(report)))
}

func errorOf(report migration.Report) string {
	if report.Error == nil {
		return string(report.Result)
	}
	return plainText(*report.Error)
}

// everyLine is the interval between two lines about the same phase if the output is not a terminal.
const everyLine = 10 * time.Second

// display shows the progress of a migration: on a terminal, one line that changes; elsewhere, one line for
// each phase, and one more every ten seconds of it.
type display struct {
	out   io.Writer
	id    string
	phase string
	shown bool
	told  time.Time // when the last line was written to an output that is not a terminal
	// waiting is the phase that was reported as waiting, with its reason.
	waiting string
}

func (d *display) terminal() bool { return isTerminal(d.out) }

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (d *display) update(document []byte) error {
	var p migration.Progress
	if err := json.Unmarshal(document, &p); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	if !d.terminal() {
		if d.phase == "" {
			fmt.Fprintln(d.out, "migration", d.id)
		}
		if p.Phase != d.phase {
			p.Rate, p.LeftTime = 0, 0 // A phase that has just begun gives no reliable estimate.
		}
	}
	d.line(p.Phase, progressLine(p))
	d.wait(p)
	return nil
}

// line replaces the last line; if the output is not a terminal, it writes the line of a phase that has just
// begun.
func (d *display) line(phase, text string) {
	if d.terminal() {
		fmt.Fprintf(d.out, "\r\033[K%s", text)
		d.shown = true
		return
	}
	if now := time.Now(); phase != d.phase || now.Sub(d.told) >= everyLine {
		d.phase, d.told = phase, now
		fmt.Fprintln(d.out, text)
	}
}

// wait prints once, in a line that stays, what a phase waits for.
func (d *display) wait(p migration.Progress) {
	if p.Waiting == "" || d.waiting == p.Phase {
		return
	}
	d.waiting = p.Phase
	d.clear()
	fmt.Fprintf(d.out, "           %s waits: %s\n", p.Phase,
		strings.ReplaceAll(plainText(p.Waiting), "\n", "; "))
}

func (d *display) clear() {
	if d.shown {
		fmt.Fprint(d.out, "\r\033[K")
	}
}

// plan prints whether a migration would work.
func plan(cmd *cobra.Command, agent api.AgentClient, request *api.MigrateRequest, asJSON bool) error {
	reply, err := agent.Plan(cmd.Context(), request)
	if err != nil {
		return err
	}
	var p predict.Plan
	if err := json.Unmarshal(reply.PlanJson, &p); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	if p.Possible && request.Mode == string(migration.Auto) {
		request.Forecast = true // the agent forecasts the cost only of a migration that would work
		if reply, err = agent.Plan(cmd.Context(), request); err != nil {
			return err
		}
		if err := json.Unmarshal(reply.PlanJson, &p); err != nil {
			return fmt.Errorf("answer of the agent: %w", err)
		}
	}
	if asJSON {
		err = printRawJSON(cmd.OutOrStdout(), reply.PlanJson)
	} else {
		printPlan(cmd.OutOrStdout(), p.Plan)
		printSplits(cmd.OutOrStdout(), p)
	}
	if err == nil && !p.Possible {
		return cli.Exit(cli.ExitError, nil)
	}
	return err
}
