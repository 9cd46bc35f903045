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
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

const migrateLong = `Migrate moves a running container from this node to another: memory, processes, open files, its file system and
volumes, its address and its TCP connections. Its users notice a pause.

Modes:
  auto       one of the next four, as is best for this container and this link: see below.
  cold       it is frozen while its memory travels.
  pre-copy   its memory travels while it runs, in rounds, each with what was written during the one before; it is frozen for
             what it wrote in the last instants. If it writes faster than the link carries, see --on-no-convergence.
  post-copy  it is frozen for its execution state alone and runs on at the other node at once; its memory follows, first what
             it waits for.
  hybrid     rounds as in pre-copy as long as they help; what it has written since then follows as in post-copy.
  restart    its processes do not move: they are asked to end, and new ones start at the other node, from the same files. For
             containers of godwit run that cannot be checkpointed. See below.

Mode auto predicts what each mode would cost (godwit plan shows that) and takes the one with the least downtime, and among those that are
as good (within 10 % plus 10 ms) the one that is over first, so that --deadline, --max-bytes and --bandwidth-limit are kept. It takes post-copy or hybrid
only if that is clearly better: without them the freeze would be longer than --downtime-target, and by a fifth and 20 ms longer
than with them; of the two the one that is over first, or, of a container that was watched for ten seconds (godwit top), the one that has
its state on two nodes for less long where both take about as long; and only if both nodes are needed for no more than 10 seconds, or
--max-split, as far as is predicted. --no-post-copy rules them out. It never restarts a container.
While rounds go on it decides anew: if they do not bring the freeze down to the target, if the time or the bytes run out. Each
decision is in the report, with its numbers.

Volumes, by --volumes, for all or for single ones (by name, or by path in the container):
  move    it comes with the container and goes from here, host directories too (but those that the container can only read
          stay here as well; those of containers of other engines stay, and are not copied). What both nodes mount is
          recognised and not copied: one node writes a random token there, which the other must find and answer in
          place. What is there at the other node already is never overwritten.
  shared  both nodes must mount it: it is refused if that cannot be proven.
  skip    the container has there what is there, or an empty volume; what is here stays here.
The content of a tmpfs comes with the container, or is left behind by skip.

Until the container runs at the other node, any failure leaves it running here. It never runs twice, unless an operator wrongly
decides so (godwit migration resolve). If contact is lost at the very moment of the handover, the container stays frozen here
until the other node can be asked ("in doubt").

After the handover of a post-copy or hybrid the container's state is split over two nodes until its memory has followed
(seconds to minutes: phase drain). If the link breaks then, the container waits for pages that it lacks, and goes on when the
link is back. If this node is lost for good in that time, so is what has not followed; if the other is lost, what it did since the
handover is. In modes cold, pre-copy and restart there is no such time. --max-split bounds it: a mode that is predicted to need both nodes
for longer is refused, or not chosen; and if the rounds find that what is left would take longer, they go on, or the container is frozen
while the rest is sent. With --spill this node also writes the memory that follows to its disk, encrypted,
with a key that only the agents of both nodes have, in memory. A reboot of this node then loses none of it,
once all is written: the report says when. That needs as much room as the memory, which is looked for before
anything moves. A node's agent may leave these modes to users, or forbid them (godwit agent --post-copy).

In mode restart the files are copied while the container runs, as often as helps or --checkpoints says. Then it gets its stop signal,
and its grace (run --stop-signal, --stop-timeout, or the image's); what has changed last is copied, and it is started at the other
node. Its connections end as with any stop; clients that connect meanwhile wait. It has to become healthy there: its health check
succeeds (run --health-cmd, or the image's); or, if it has none, it waits on all the ports on which it had waited, or, if it has
no ports, it runs for 3 seconds. If that has not happened in time (run --start-timeout), it is killed there, what it has written
there is thrown away, and it is started again here, where its files are as it had left them. Its memory, and what is in
/dev/shm, is lost as with any stop.

Exit codes: 0 it moved; 1 it did not, and runs here as before; 3 in doubt, or this node's agent ended meanwhile; 130 you
pressed ^C, and the migration goes on.`

const migrateExample = `  godwit migrate web b
  godwit migrate web b --dry-run          # would it work, and what would move
  godwit migrate web b --json | jq .downtime_seconds
  godwit migrate web b --no-post-copy --max-bytes 500m       # its state is never on two nodes
  godwit migrate web b --deadline 20s                        # it has to run there by then
  godwit migrate web b --mode pre-copy --downtime-target 50ms
  godwit migrate web b --mode post-copy                     # shortest pause, whatever it holds and writes
  godwit migrate web b --mode hybrid --max-split 30s         # both nodes are needed for half a minute at most, as predicted
  godwit migrate web b --mode post-copy --spill              # a reboot of this node loses no memory
  godwit migrate web b --mode pre-copy --on-no-convergence hybrid
  godwit migrate web b --mode pre-copy --keep-footprint 2h   # what is the same when it returns is not sent again
  godwit migrate web b --mode restart --checkpoints 3        # its processes start anew
  godwit migrate web b --volumes data=shared,/cache=skip    # the others move
  godwit migrate --detach web b           # prints an id for "godwit migration watch"`

func newMigrateCommand() *cobra.Command {
	request := &api.MigrateRequest{}
	var asJSON, dryRun, detach bool
	demands := newDemandFlags()
	var timeout, downtime, footprint time.Duration
	var checkpoints int32
	limit := &parsed[int64]{kind: "rate", parse: lab.ParseBandwidth}
	cmd := &cobra.Command{
		Use:     "migrate CONTAINER NODE",
		Short:   "Move a running container to another node",
		Long:    migrateLong,
		Example: migrateExample,
		Args:    usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Container, request.Node, request.TimeoutSeconds = args[0], args[1], timeout.Seconds()
			request.DowntimeTargetSeconds, request.KeepFootprintSeconds = downtime.Seconds(), footprint.Seconds()
			request.BandwidthLimitBitsPerSecond = float64(limit.value)
			if err := errors.Join(checkModeFlags(cmd, request.Mode), checkCheckpoints(checkpoints)); err != nil {
				return err
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
	flags.StringVar(&request.Mode, "mode", string(migration.Auto), "how: auto, cold, pre-copy, post-copy, hybrid, restart")
	completeValues(cmd, "mode", string(migration.Auto), string(migration.Cold), string(migration.PreCopy), string(migration.PostCopy), string(migration.Hybrid),
		string(migration.Restart))
	demands.add(cmd)
	flags.Int32Var(&checkpoints, "checkpoints", 0,
		"mode restart: how often its files are copied while it runs; 0: not at all (default: until the rest is small, or does not get less)")
	addRoundFlags(cmd, &downtime, &request.MaxRounds, &request.OnNoConvergence, limit)
	flags.DurationVar(&footprint, "keep-footprint", 0,
		"how long this node keeps in memory what the container held, in case that it comes back by a pre-copy (default: it does not)")
	addVolumesFlag(cmd, &request.Volumes)
	flags.BoolVar(&asJSON, "json", false, "print the report as JSON")
	flags.BoolVar(&dryRun, "dry-run", false, "only tell whether it would work and what would move")
	flags.BoolVarP(&detach, "detach", "d", false, "print the migration's id and return")
	flags.BoolVar(&request.Wait, "wait", false, "if its last migration is not over yet, wait for that (default: refuse)")
	flags.DurationVar(&timeout, "timeout", 0, "undo it if the container has not been handed over by then (default: none)")
	return cmd
}

// checkModeFlags refuses what would have no effect in a mode.
func checkModeFlags(cmd *cobra.Command, mode string) error {
	useless := map[migration.Mode][]string{
		migration.Auto: {"checkpoints"},
		migration.Cold: {
			"downtime-target", "max-rounds", "on-no-convergence", "checkpoints", "max-split", "spill",
		},
		migration.PreCopy:  {"checkpoints"},
		migration.PostCopy: {"on-no-convergence", "checkpoints"},
		migration.Hybrid:   {"checkpoints"},
		migration.Restart:  {"max-rounds", "on-no-convergence", "keep-footprint", "max-split", "spill"},
	}
	flags := useless[migration.Mode(mode)]
	if mode != string(migration.Auto) {
		flags = append(flags, "deadline", "max-bytes", "no-post-copy")
	}
	for _, flag := range flags {
		if cmd.Flags().Changed(flag) {
			return &codedError{exitUsage, fmt.Errorf("--%s means nothing in mode %s", flag, mode)}
		}
	}
	return nil
}

// checkCheckpoints refuses a number that makes no sense: it is a matter of usage.
func checkCheckpoints(n int32) error {
	if n >= 0 && n <= migration.MaxMaxRounds {
		return nil
	}
	return &codedError{exitUsage, fmt.Errorf("--checkpoints %d: must be from 0 to %d", n, migration.MaxMaxRounds)}
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

// display shows how far a migration is: one line that changes on a terminal, a line per phase elsewhere.
type display struct {
	out   io.Writer
	id    string
	phase string
	shown bool
	// waiting is the phase of which was told that it waits, and for what.
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
		p.Rate, p.LeftTime = 0, 0 // Little has been seen of a phase that just began.
	}
	d.line(p.Phase, progressLine(p))
	d.wait(p)
	return nil
}

// line shows a line in place of the last one, or, where it is not a terminal, that of a phase that has just begun.
func (d *display) line(phase, text string) {
	if d.terminal() {
		fmt.Fprintf(d.out, "\r\033[K%s", text)
		d.shown = true
		return
	}
	if phase != d.phase {
		d.phase = phase
		fmt.Fprintln(d.out, text)
	}
}

// wait says once, in a line that stays, what a phase waits for.
func (d *display) wait(p migration.Progress) {
	if p.Waiting == "" || d.waiting == p.Phase {
		return
	}
	d.waiting = p.Phase
	d.clear()
	fmt.Fprintf(d.out, "           %s waits: %s\n", p.Phase, strings.ReplaceAll(plainText(p.Waiting), "\n", "; "))
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
	var p predict.Plan
	if err := json.Unmarshal(reply.PlanJson, &p); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	if p.Possible && request.Mode == string(migration.Auto) {
		request.Forecast = true // of what would not work nobody needs to know what it would cost
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
		return &codedError{code: exitError}
	}
	return err
}
