package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/godwit/godwit/internal/bench"
	"github.com/godwit/godwit/internal/lab/workload/pages"
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
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchRoundsCommand(), newBenchNetworkCommand(), newBenchSwitchoverCommand(),
		newBenchStudiesCommand(), newBenchTimeCommand(), newBenchIdleCommand(), newBenchIdlePeersCommand())
	for _, suite := range suitesInTurns() {
		cmd.AddCommand(suite.make())
	}
	return cmd
}

const benchSwitchoverLong = `Measure how long a container stands still when it is moved:

  criu floor        runc checkpoint and restore on one node, in memory, frozen beforehand: nothing is sent
  runc and rsync    runc checkpoint, rsync, runc restore (Puliafito et al., Sensors 2019)
  podman            podman container checkpoint --export, rsync, podman container restore --import
  godwit cold       godwit migrate --mode cold
  godwit pre-copy   godwit migrate --mode pre-copy

What is moved:

  tiny, redis       a sleep; a Redis with 64 MiB of data and a client that counts
  idle-...          memory of which nothing is written
  busy-1GiB         10 MB of it are written per second, anywhere
  shared-256MiB     shared memory, idle
  forked-256MiB     4 processes share it copy-on-write
  fog, fog-half     a server of 110 MB that writes 500 KB/s (Puliafito et al., configuration B); half compressible
  recogniser        140 MB of which 22 MB are written again and again (OpenFace of Ma et al., IEEE TMC 2019)

Each has links and ways of its own, from which --link and --way choose by the beginnings of their names; a link that is named
in full, such as 50mbit/10ms, is used for all workloads. The ways take turns. Of each the median of all runs is told, and the
lowest and the highest. Each page of what is nothing but memory is verified in the end, and the client of Redis checks every
answer: if anything is lost the benchmark fails.

Nearly all of the time goes into slow links; --quick leaves most of them out.`

func newBenchSwitchoverCommand() *cobra.Command {
	size, hot, rate := newSizeFlag(), newSizeFlag(), newSizeFlag()
	return benchInTurns{
		suite: func(ctx context.Context, config bench.Config) (bench.Result, error) {
			config.Memory = pages.Config{Size: size.value, Rate: rate.value, Hot: hot.value}
			return bench.Switchover(ctx, config)
		},
		workloads: bench.WorkloadNames(), ways: bench.WayNames(), quick: "fewer runs, of fewer workloads, over one link each",
		more: func(flags *pflag.FlagSet, config *bench.Config) {
			flags.Var(size, "memory", "move so much memory, such as 512MiB, and nothing else")
			flags.Var(rate, "written", "with --memory: how much of it is written per second, such as 20MiB")
			flags.Var(hot, "hot", "with --memory: how much of it is written again and again (default: any of it)")
			flags.StringArrayVar(&config.Links, "link", nil, "only over this one: "+strings.Join(bench.LinkNames(), ", "))
		},
		command: cobra.Command{
			Use:   "switchover",
			Short: "How long a container stands still when it is moved",
			Long:  benchSwitchoverLong,
			Example: `  godwit bench switchover --json switchover.json
  godwit bench switchover --quick
  godwit bench switchover --workload tiny --link 1gbit --link 10mbit --runs 15
  godwit bench switchover --workload idle --way godwit
  godwit bench switchover --memory 512MiB --written 20MiB --hot 64MiB --link 50mbit/10ms`,
		},
	}.make()
}

const benchPostCopyLong = `Measure what it costs to have a container's memory follow it, beside CRIU's own lazy migration over the same link:

  criu lazy         runc checkpoint --lazy-pages, rsync, criu lazy-pages, runc restore --lazy-pages
  godwit post-copy  godwit migrate --mode post-copy
  godwit hybrid     godwit migrate --mode hybrid
  godwit cold, godwit pre-copy, where these are compared with them

What is moved is a program that fills its memory with what cannot be compressed, checks every page that it looks at, and
tells how often and how long it had to wait for one:

  1MiB ... 4GiB     it does nothing, or writes at a rate: how long the freeze is
  1GiB rewritten    at 100 MB/s over 1 Gbit/s: freeze and bytes of a hybrid, beside a pre-copy
  4 threads jump    they look at any page, as fast as they can: how much of the link is used
  scans, jumps      one thread does: how many page faults there are, and how long each takes
  fog               110 MB that change at 500 KB/s (Puliafito et al., Sensors 2019, configuration B): the total time
  recogniser        140 MB of which 22 MB are written again and again (OpenFace of Ma et al., IEEE TMC 2019), with a client that
                    wants all of the 22 MB ten times a second; each page is written as a whole, or 64 bytes of it

A way of CRIU's that fails is told in its row. Each page is checked in the end: if anything is lost by Godwit the benchmark fails.
CRIU needs fs.pipe-max-size to be 4 MiB; it is set for that time.

--quick moves less memory, fewer times.`

const benchFilesLong = `Measure how a container's files and its image get to another node, and what of that it has to wait for:

  rsync             rsync -aHAXS --numeric-ids by rsync's own protocol, and once more when nothing is written any more
  rsync over ssh    the same, by way of ssh
  podman volume     podman volume export | podman volume import by way of ssh, twice
  podman save       podman save | podman load by way of ssh
  godwit cold, godwit pre-copy, godwit restart
                    godwit migrate; "godwit restart 0" is restart with nothing copied before the container stops

What is moved is a program that writes its files all the time and knows what each of them must hold; it looks at all of
them in the end, and if anything is lost the benchmark fails. None of them can be compressed.

  one file              what the freeze of others is compared with
  1GiB in 10 files      the first copy
  100,000 files         of 1 KiB, of which some are rewritten: the first copy, and the freeze
  1GiB file             of which 1 byte is changed when half of it was copied
  2GiB image, there     a container that has next to nothing of its own; of rsync: a look at what is there
  590MB image           of which the target has nothing
  400MB of messages     40,000 files, of which 100 of 10 kB are replaced every second, over 20 Mbit/s

What was sent is counted on the link. The agents' memory is the most that they had during a migration.

Much of the time goes into the slow link; --quick has much less of everything.`

const benchPredictLong = `Measure how good predictions and choices are: containers are moved in each mode and in mode auto, each move is predicted by "godwit
plan" right before, and what was predicted is compared with what it took.

  tiny, 32MiB, 64MiB, redis  over 1 Gbit/s and 0.4 ms, 100 Mbit/s and 20 ms, 20 Mbit/s and 50 ms
  coap, 500 KB/s             the server of study B with its client, over the first two of these
  shell                      in mode restart

Asked is that half of the predictions of downtime and total time are wrong by at most 20 %, and nine of ten by at most 50 % (or 30 ms);
and that auto's downtime is at most 1.2 x that of the best mode + 20 ms in nine of ten cells, and never the worst. Nine of ten moves are
to be within the intervals, too.

Without the services it took 26 minutes on two cores.`

const benchEnginesLong = `Measure how long containers of Docker, Podman, containerd and LXC stand still when they are moved, beside one of Godwit's own engine,
and beside each engine's own way over the same link:

  godwit, embedded      godwit migrate --mode pre-copy, a container of Godwit's own engine
  godwit, docker        the same, a container that docker run has started; likewise podman, containerd, lxc
  docker checkpoint     docker checkpoint create, rsync, docker start --checkpoint
  podman checkpoint     podman container checkpoint --export, rsync, podman container restore --import
  ctr checkpoint        ctr containers checkpoint --rw --image --task, ctr images export, rsync, import, ctr containers restore --rw --live
  lxc-checkpoint        lxc-checkpoint -s, rsync of what it has written, lxc-checkpoint -r

What is moved, there and back, is a sleep, and a Redis with 64 MiB that cannot be compressed. With Docker, LXC and Godwit's own engine it has
a client meanwhile that counts, over one connection. Otherwise, and for the engines' own ways, the containers have no network: that makes
these quicker. All that was stored in a Redis is read again in the end. What the engine at the target spends on making the container is told;
it is not in the freeze. Docker's and LXC's own ways leave the container's files behind, the others have them in their archive.

The whole takes about 8 minutes on two cores that do little else; --quick takes two.`

const benchJourneyLong = `Measure what it gains to know where a user will go. A user moves along four nodes in a row, the farther apart the longer their round trip,
stays at each for a while, and the container follows by mode pre-copy:

  godwit, nothing staged  all of the memory is sent at each move
  godwit, path known      godwit stage --path, with the times of the moves
  godwit, nearest 1, 2    godwit stage --nearest 1 or 2: at the second node, the one that was left is as near as the next one

What is told of moves is the median of a journey's, and the worst handoff; bytes are of the whole journey. Each page is verified in the end:
if anything is lost the benchmark fails.

The whole takes about 25 minutes; --quick takes five.`

// suitesInTurns are those that need no flags of their own.
func suitesInTurns() []benchInTurns {
	return []benchInTurns{
		{
			suite: bench.PostCopy, workloads: bench.FollowingNames(), ways: bench.FollowingWays(), quick: "fewer runs, of fewer workloads, with less memory",
			command: cobra.Command{Use: "postcopy", Short: "What memory costs that follows its container", Long: benchPostCopyLong, Example: `  godwit bench postcopy --json postcopy.json
  godwit bench postcopy --quick
  godwit bench postcopy --workload jumps --way criu`},
		},
		{
			suite: bench.Files, workloads: bench.FilesNames(), ways: bench.FilesWays(), quick: "fewer runs, of fewer workloads, with fewer and smaller files",
			command: cobra.Command{Use: "files", Short: "How files, volumes and images move, and what of that is in the freeze", Long: benchFilesLong, Example: `  godwit bench files --json files.json
  godwit bench files --quick
  godwit bench files --workload 100,000 --way rsync --way "godwit pre"`},
		},
		{
			suite: bench.Predict, workloads: bench.ForetoldNames(), ways: bench.ForetoldWays(), quick: "one run of fewer workloads",
			command: cobra.Command{Use: "predict", Short: "How good predictions and mode auto are", Long: benchPredictLong, Example: `  godwit bench predict --json predict.json
  godwit bench predict --quick --workload tiny`},
		},
		{
			suite: bench.Engines, workloads: bench.EngineNames(), ways: bench.EngineWays(), quick: "there and back once",
			command: cobra.Command{Use: "engines", Short: "Containers of Docker, Podman, containerd and LXC, beside these engines' own ways", Long: benchEnginesLong, Example: `  godwit bench engines --json engines.json
  godwit bench engines --quick --workload tiny`},
		},
		{
			suite: bench.Journey, workloads: bench.JourneyNames(), ways: bench.JourneyWays(), quick: "one journey of each kind, with one workload",
			command: cobra.Command{Use: "journey", Short: "What it gains to know where a user will go", Long: benchJourneyLong, Example: `  godwit bench journey --json journey.json
  godwit bench journey --quick --way "godwit, path"`},
		},
	}
}

// benchInTurns is the command of a suite in which ways take turns at workloads.
type benchInTurns struct {
	suite           func(context.Context, bench.Config) (bench.Result, error)
	workloads, ways []string
	quick           string                                      // what a quick run is
	more            func(flags *pflag.FlagSet, c *bench.Config) // flags that only it has; nil: none
	command         cobra.Command
}

func (b benchInTurns) make() *cobra.Command {
	config := bench.Config{ImageCache: labImageCache}
	cmd := &b.command
	cmd.Args = noArguments
	flags := cmd.Flags()
	flags.StringVar(&config.File, "json", "", "write the result to this file")
	flags.StringVar(&config.Lab, "lab", "bench-"+cmd.Use, "name of the lab that is made for it, and is gone at the end")
	flags.BoolVar(&config.Quick, "quick", false, b.quick)
	flags.IntVar(&config.Runs, "runs", 0, "how often each way is measured (default: as suits the workload)")
	flags.StringArrayVar(&config.Workloads, "workload", nil, "only this one: "+strings.Join(b.workloads, "; "))
	flags.StringArrayVar(&config.Ways, "way", nil, "only this one: "+strings.Join(b.ways, "; "))
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

const benchRoundsLong = `Measure what the parts of a pre-copy cost, on processes of 1 GiB that this command starts; no lab is needed:

  attach            how long a process is stopped when its memory begins to be tracked
  scan              how long it takes to find the pages that were written since the last time
  round to frames   scan, read and what follows, on one core, with data that cannot be compressed: the cost of each stage
  writer            how much a program that writes at random as fast as it can is slowed down while it is copied
  pre-dump          the same by CRIU's own pre-dump, where the kernel has soft-dirty

The whole takes about a minute; --quick takes half of it.`

func newBenchRoundsCommand() *cobra.Command {
	var config bench.RoundsConfig
	var file string
	cmd := &cobra.Command{
		Use:     "rounds",
		Short:   "What the parts of a pre-copy cost",
		Long:    benchRoundsLong,
		Example: "  godwit bench rounds --json rounds.json\n  godwit bench rounds --experiment scan --experiment attach",
		Args:    noArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.BoolVar(&config.Quick, "quick", false, "fewer samples")
	flags.StringArrayVar(&config.Experiments, "experiment", nil, "only this one: "+strings.Join(bench.ExperimentNames(), "; "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Progress = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		result, err := bench.Rounds(cmd.Context(), config)
		return showBench(cmd, result, err, file)
	}
	return cmd
}

func newSizeFlag() *parsed[int64] { return &parsed[int64]{kind: "size", parse: parseBytes} }

// showBench shows what was measured also if some of it failed.
func showBench(cmd *cobra.Command, result bench.Result, err error, file string) error {
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
	var ready bool
	cmd := &cobra.Command{
		Use:    "time -- COMMAND [ARGUMENT...]",
		Short:  "Run a command and print how long it took, as JSON",
		Hidden: true,
		Args:   usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if ready {
				return bench.TimeReady(cmd.Context(), args, cmd.OutOrStdout())
			}
			return bench.TimeCommand(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "it says that it is ready by a byte at descriptor 3: print how long that took as well")
	return cmd
}
