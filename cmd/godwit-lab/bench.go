package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/godwit/godwit/internal/bench"
	"github.com/godwit/godwit/internal/bench/engines"
	"github.com/godwit/godwit/internal/bench/files"
	"github.com/godwit/godwit/internal/bench/journey"
	"github.com/godwit/godwit/internal/bench/postcopy"
	"github.com/godwit/godwit/internal/bench/predict"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/rounds"
	"github.com/godwit/godwit/internal/bench/switchover"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

const benchLong = `Bench compares Godwit with other ways to do the same, in a lab on this machine, within
one run.

Each suite prints a table, with the goals that are set for Godwit and whether they are met. With --json FILE,
it also writes a flat list of rows with all samples.`

// newBenchCommand returns the group of benchmark commands.
func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench SUITE",
		Short: "Compare Godwit with other tools",
		Long:  benchLong,
		Args:  cli.NoArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchRoundsCommand(), newBenchNetworkCommand(), newBenchSwitchoverCommand(),
		newBenchStudiesCommand(), newBenchTimeCommand(), newBenchIdleCommand(), newBenchIdlePeersCommand(),
		newBenchControllerCommand())
	for _, suite := range suitesInTurns() {
		cmd.AddCommand(suite.make())
	}
	return cmd
}

const benchSwitchoverLong = `Measure how long a container is frozen when it moves:

  criu floor        runc checkpoint and restore on one node, in memory, already frozen; nothing is sent
  runc and rsync    runc checkpoint, rsync, runc restore (Puliafito et al., Sensors 2019)
  podman            podman container checkpoint --export, rsync, podman container restore --import
  godwit cold       godwit migrate --mode cold
  godwit pre-copy   godwit migrate --mode pre-copy

Workloads:

  tiny, redis       a sleep; a Redis with 64 MiB of data and a client that increments a counter
  idle-...          memory that is never written
  busy-1GiB         memory of which 10 MB per second are written, at random addresses
  shared-256MiB     idle shared memory
  forked-256MiB     memory that 4 processes share copy-on-write
  fog, fog-half     a server with 110 MB that writes 500 KB/s (Puliafito et al., configuration B); fog-half's
                    memory is half compressible
  recogniser        140 MB, of which 22 MB are rewritten constantly (OpenFace of Ma et al., IEEE TMC 2019)

Each workload has its own links and ways. --link and --way select from these by prefix; a link given in
full, such as 50mbit/10ms, is used for all workloads. The ways take turns. The table shows the median, the
lowest and the highest of all runs. At the end, every page of the memory workloads is verified, and the
Redis client checks every answer: if anything is lost, the benchmark fails.

Nearly all of the time goes into slow links; --quick leaves most of them out.`

func newBenchSwitchoverCommand() *cobra.Command {
	size, hot, rate := cli.SizeFlag(), cli.SizeFlag(), cli.SizeFlag()
	return benchInTurns{
		suite: func(ctx context.Context, config testbed.Config) (results.Result, error) {
			config.Memory = pages.Config{Size: size.Value, Rate: rate.Value, Hot: hot.Value}
			return switchover.Run(ctx, config)
		},
		workloads: switchover.Names(), ways: switchover.Ways(),
		quick: "fewer runs, of fewer workloads, over one link each",
		more: func(flags *pflag.FlagSet, config *testbed.Config) {
			flags.Var(size, "memory", "move only a process with this much memory, such as 512MiB")
			flags.Var(rate, "written", "with --memory: how much is written per second, such as 20MiB")
			flags.Var(hot, "hot", "with --memory: size of the region that is written (default: all of it)")
			flags.StringArrayVar(&config.Links, "link", nil,
				"use only this link: "+strings.Join(switchover.Links(), ", "))
		},
		command: cobra.Command{
			Use:   "switchover",
			Short: "Measure how long a container is frozen when it moves",
			Long:  benchSwitchoverLong,
			Example: `  godwit-lab bench switchover --json switchover.json
  godwit-lab bench switchover --quick
  godwit-lab bench switchover --workload tiny --link 1gbit --link 10mbit --runs 15
  godwit-lab bench switchover --workload idle --way godwit
  godwit-lab bench switchover --memory 512MiB --written 20MiB --hot 64MiB --link 50mbit/10ms`,
		},
	}.make()
}

const benchPostCopyLong = `Measure the cost of post-copy, compared with CRIU's lazy migration over the same
link:

  criu lazy         runc checkpoint --lazy-pages, rsync, criu lazy-pages, runc restore --lazy-pages
  godwit post-copy  godwit migrate --mode post-copy
  godwit hybrid     godwit migrate --mode hybrid
  godwit cold, godwit pre-copy, where a comparison with them is useful

The container runs a program that fills its memory with incompressible data, checks every page that it reads,
and reports how often and how long it had to wait for a page:

  1MiB ... 4GiB     is idle, or writes at a fixed rate: how long is the freeze?
  1GiB rewritten    is rewritten at 100 MB/s over 1 Gbit/s: freeze and bytes of hybrid and pre-copy
  4 threads jump    read random pages as fast as they can: how much of the link is used?
  scans, jumps      reads pages in order, or at random, in one thread: how many page faults, and how long?
  fog               110 MB that change at 500 KB/s (Puliafito et al., Sensors 2019, B): total time
  recogniser        140 MB, of which 22 MB are rewritten constantly (OpenFace of Ma et al., IEEE TMC 2019); a
                    client needs all 22 MB ten times a second. Whole pages are written, or 64 bytes of each.

If CRIU fails, its row says so. Every page is checked at the end: if Godwit loses anything, the benchmark
fails. CRIU needs fs.pipe-max-size to be 4 MiB; the benchmark sets it for its duration.

--quick moves less memory, fewer times.`

const benchFilesLong = `Measure how a container's files and image get to another node, and how much of that
is in the freeze:

  rsync             rsync -aHAXS --numeric-ids over rsync's own protocol, and again after the last write
  rsync over ssh    the same over ssh
  podman volume     podman volume export | podman volume import over ssh, twice
  podman save       podman save | podman load over ssh
  godwit cold, godwit pre-copy, godwit restart
                    godwit migrate; "godwit restart 0" is restart with nothing copied before the
                    container stops

The container runs a program that writes its files all the time and knows the correct contents of each. It
verifies all files at the end; if anything is lost, the benchmark fails. The files are incompressible.

  one file              the baseline for the other workloads' freeze
  1GiB in 10 files      the first copy
  100,000 files         of 1 KiB each, some of which are rewritten: the first copy, and the freeze
  1GiB file             with 1 byte changed once half of it has been copied
  2GiB image, there     a container with almost no files of its own; rsync only compares the trees
  590MB image           of which the target has nothing
  400MB of messages     40,000 files, of which 100 of 10 kB each are replaced every second, over 20 Mbit/s

Bytes are counted on the link. The agents' memory is their peak during a migration.

Much of the time goes into the slow link; --quick does much less of everything.`

const benchPredictLong = `Measure how good the predictions and the choices of mode auto are. Containers move
in each mode and in mode auto. Before each move, "godwit plan" predicts its cost, and the prediction is
compared with the result.

  tiny, 32MiB, 64MiB, redis  over 1 Gbit/s and 0.4 ms, 100 Mbit/s and 20 ms, 20 Mbit/s and 50 ms
  coap, 500 KB/s             the server of study B with its client, over the first two of these links
  shell                      in mode restart

The goals: half of the predictions of downtime and total time are wrong by at most 20 %, eight of ten
by at most 30 %, and nine of ten by at most 50 % (or 30 ms). In nine of ten cells, auto's downtime is
at most 1.2 x that of the best mode + 20 ms, and it is never the worst. Nine of ten moves are within
the predicted intervals.

Without the services, a run took 26 minutes on two cores.`

const benchEnginesLong = `Measure how long containers of Docker, Podman, containerd and LXC are frozen when
they move, compared with a container of Godwit's own engine and with each engine's own way over the same
link:

  godwit, embedded      godwit migrate --mode pre-copy, a container of Godwit's own engine
  godwit, docker        the same for a container started by docker run; likewise podman, containerd, lxc
  docker checkpoint     docker checkpoint create, rsync, docker start --checkpoint
  podman checkpoint     podman container checkpoint --export, rsync, podman container restore --import
  ctr checkpoint        ctr containers checkpoint --rw --image --task, ctr images export, rsync, import,
                        ctr containers restore --rw --live
  lxc-checkpoint        lxc-checkpoint -s, rsync of the checkpoint, lxc-checkpoint -r

A sleep and a Redis with 64 MiB of incompressible data move there and back. With Docker, LXC and Godwit's
own engine, a client meanwhile increments a counter in Redis over one connection. With the other engines,
and for the engines' own ways, the containers have no network, which makes these moves faster. At the end,
all data in Redis is read back. The time that the target's engine takes to create the container is shown
separately; it is not part of the freeze. Docker's and LXC's own ways leave the container's files behind;
the others archive them.

A run takes about 8 minutes on two mostly idle cores; --quick takes two.`

const benchJourneyLong = `Measure the gain from knowing where a user will go. A user moves along four nodes
in a row; the farther apart two nodes are, the longer their round trip. The user stays at each node for a
while, and the container follows in mode pre-copy:

  godwit, nothing staged  sends all of the memory at each move
  godwit, path known      uses godwit stage --path with the times of the moves
  godwit, nearest 1, 2    uses godwit stage --nearest 1 or 2; at the second node, the previous node is as
                          near as the next one

The figures are the medians over a journey's moves, the worst handoff, and the bytes of the whole journey.
Every page is verified at the end: if anything is lost, the benchmark fails.

A run takes about 25 minutes; --quick takes five.`

// suitesInTurns returns the suites without flags of their own.
func suitesInTurns() []benchInTurns {
	return []benchInTurns{
		{
			suite: postcopy.Run, workloads: postcopy.Names(), ways: postcopy.Ways(),
			quick: "fewer runs, of fewer workloads, with less memory",
			command: cobra.Command{Use: "postcopy", Short: "Measure the cost of post-copy",
				Long: benchPostCopyLong, Example: `  godwit-lab bench postcopy --json postcopy.json
  godwit-lab bench postcopy --quick
  godwit-lab bench postcopy --workload jumps --way criu`},
		},
		{
			suite: files.Run, workloads: files.Names(), ways: files.Ways(),
			quick: "fewer runs, of fewer workloads, with fewer and smaller files",
			command: cobra.Command{Use: "files", Short: "Measure how files, volumes and images move",
				Long: benchFilesLong, Example: `  godwit-lab bench files --json files.json
  godwit-lab bench files --quick
  godwit-lab bench files --workload 100,000 --way rsync --way "godwit pre"`},
		},
		{
			suite: predict.Run, workloads: predict.Names(), ways: predict.Ways(),
			quick: "one run of fewer workloads",
			command: cobra.Command{Use: "predict", Short: "Measure how good predictions and mode auto are",
				Long: benchPredictLong, Example: `  godwit-lab bench predict --json predict.json
  godwit-lab bench predict --quick --workload tiny`},
		},
		{
			suite: engines.Run, workloads: engines.Names(), ways: engines.Ways(),
			quick: "there and back once",
			command: cobra.Command{Use: "engines",
				Short: "Compare moves of engines' containers with the engines' own ways",
				Long:  benchEnginesLong, Example: `  godwit-lab bench engines --json engines.json
  godwit-lab bench engines --quick --workload tiny`},
		},
		{
			suite: journey.Run, workloads: journey.Names(), ways: journey.Ways(),
			quick: "one journey of each kind, with one workload",
			command: cobra.Command{Use: "journey",
				Short: "Measure the gain from knowing where a user will go",
				Long:  benchJourneyLong, Example: `  godwit-lab bench journey --json journey.json
  godwit-lab bench journey --quick --way "godwit, path"`},
		},
	}
}

// benchInTurns is the command of a suite that runs each workload in several ways, in turns.
type benchInTurns struct {
	suite           func(context.Context, testbed.Config) (results.Result, error)
	workloads, ways []string
	quick           string                                        // describes a quick run
	more            func(flags *pflag.FlagSet, c *testbed.Config) // flags of this suite only; may be nil
	command         cobra.Command
}

func (b benchInTurns) make() *cobra.Command {
	config := testbed.Config{ImageCache: imageCache}
	cmd := &b.command
	cmd.Args = cli.NoArguments
	flags := cmd.Flags()
	flags.StringVar(&config.File, "json", "", "write the result to this file")
	flags.StringVar(&config.Lab, "lab", "bench-"+cmd.Use, "name of the temporary lab")
	flags.BoolVar(&config.Quick, "quick", false, b.quick)
	flags.IntVar(&config.Runs, "runs", 0, "how often to measure each way (default: depends on the workload)")
	flags.StringArrayVar(&config.Workloads, "workload", nil,
		"measure only this workload: "+strings.Join(b.workloads, "; "))
	flags.StringArrayVar(&config.Ways, "way", nil, "measure only this way: "+strings.Join(b.ways, "; "))
	if b.more != nil {
		b.more(flags, &config)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		result, err := b.suite(cmd.Context(), config)
		return showBench(cmd, result, err, config.File)
	}
	return cmd
}

const benchRoundsLong = `Measure the cost of the parts of a pre-copy, on processes of 1 GiB that this
command starts; it needs no lab:

  attach            how long a process is stopped to start tracking its memory
  scan              how long it takes to find the pages written since the last scan
  round to frames   the cost of each stage of a round (scan, read and so on), on one core, with
                    incompressible data
  writer            how much a copy slows down a program that writes at random as fast as it can
  pre-dump          the same with CRIU's own pre-dump, where the kernel has soft-dirty

A run takes about a minute; --quick takes half of that.`

func newBenchRoundsCommand() *cobra.Command {
	var config rounds.Config
	var file string
	cmd := &cobra.Command{
		Use:   "rounds",
		Short: "Measure the cost of the parts of a pre-copy",
		Long:  benchRoundsLong,
		Example: "  godwit-lab bench rounds --json rounds.json\n  godwit-lab bench rounds --experiment " +
			"scan --experiment attach",
		Args: cli.NoArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.BoolVar(&config.Quick, "quick", false, "fewer samples")
	flags.StringArrayVar(&config.Experiments, "experiment", nil,
		"measure only this: "+strings.Join(rounds.Names(), "; "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		result, err := rounds.Run(cmd.Context(), config)
		return showBench(cmd, result, err, file)
	}
	return cmd
}

// showBench prints the measured rows, even if some measurements failed.
func showBench(cmd *cobra.Command, result results.Result, err error, file string) error {
	if len(result.Rows) == 0 {
		return err
	}
	bench.WriteText(cmd.OutOrStdout(), result)
	if file != "" {
		if writeErr := result.WriteFile(file); err == nil {
			err = writeErr
		}
	}
	return err
}

// newBenchTimeCommand is the command that benchmarks run in a node to time another command.
func newBenchTimeCommand() *cobra.Command {
	var ready bool
	cmd := &cobra.Command{
		Use:    "time -- COMMAND [ARGUMENT...]",
		Short:  "Run a command and print how long it took, as JSON",
		Hidden: true,
		Args:   cli.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if ready {
				return testbed.TimeReady(cmd.Context(), args, cmd.OutOrStdout())
			}
			return testbed.TimeCommand(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false,
		"the command writes a byte to descriptor 3 when ready: print the time until then, too")
	return cmd
}
