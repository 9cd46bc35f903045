package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/engines"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/units"
)

const runLong = `Run creates a container from an image and starts it.

The container has its own network namespace, and an address that stays the same for the container's life,
wherever it moves. Without -d, run shows the container's output until the container exits, and exits with the
same code.

No ports are published: clients connect to the container's address. Every node can reach it. Other machines
need a route to the pool (10.57.0.0/16, unless node init was given another) through any node.

With --restart, the node where the container was last starts it again after it has ended, and after a boot:
no (default), on-failure[:N] after an exit code other than 0 (at most N times in a row), always, or
unless-stopped. A container that "godwit stop" stopped stays stopped; with always, until the next boot. The
policy moves with the container. After a boot, a container starts when it is not being migrated and all other
nodes have said that they do not have it ("godwit ps" says what it waits for). "godwit start" starts a
container that has ended at once.

A volume is created when first used, and stays when its container is removed ("godwit volume"). A host
directory must already exist. A tmpfs lives in memory and is lost with the container. "godwit migrate --help"
says what happens to each of them in a migration.`

const runExample = `  godwit run -d --name cache redis
  godwit run --memory 64m --cpus 0.5 busybox sh -c 'echo hello'
  godwit run -d --restart always --name cache redis
  godwit run -d --restart on-failure:5 --name job busybox sh -c './work'
  godwit run -d -v data:/data -e MODE=fast busybox httpd -f -h /data
  godwit run -d -v /srv/www:/www:ro --tmpfs /cache:size=64m busybox httpd -f -h /www
  godwit run -d --name web --stage-to b,c web:2   # b and c get the image's layers
  godwit run --read-only -u nobody --entrypoint /bin/id busybox`

func newRunCommand() *cobra.Command {
	request := &api.RunRequest{}
	var detach bool
	var memory string
	var volumes, memories []string
	cmd := &cobra.Command{
		Use:     "run [flags] IMAGE [COMMAND [ARG...]]",
		Short:   "Run a container",
		Long:    runLong,
		Example: runExample,
		Args:    cli.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Image, request.Args = args[0], args[1:]
			if err := parseRun(request, memory, volumes, memories); err != nil {
				return cli.Usage(err)
			}
			return withAgent(cmd,
				func(agent api.AgentClient) error { return run(cmd, agent, request, detach) })
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.BoolVarP(&detach, "detach", "d", false, "run in the background and print the container's ID")
	flags.BoolVarP(&request.Tty, "tty", "t", false, "allocate a terminal")
	flags.StringVar(&request.Name, "name", "", "name of the container (default: generated)")
	flags.StringArrayVarP(&request.Env, "env", "e", nil,
		"environment variable, NAME=VALUE; NAME alone copies the value from this shell")
	flags.StringArrayVarP(&volumes, "volume", "v", nil,
		"named volume or host directory, NAME:/PATH[:ro] or /DIRECTORY:/PATH[:ro]")
	flags.StringArrayVar(&memories, "tmpfs", nil,
		"directory in memory, /PATH[:size=64m] (default size: half of the node's memory)")
	flags.StringVar(&memory, "memory", "", "memory limit, such as 64m or 1g")
	flags.Float64Var(&request.Cpus, "cpus", 0, "CPU limit, such as 0.5 for half of one CPU")
	flags.Int64Var(&request.Pids, "pids", 0, "maximum number of processes and threads")
	flags.StringVarP(&request.Dir, "workdir", "w", "", "working directory")
	flags.StringVarP(&request.User, "user", "u", "", "user, NAME or UID[:GID]")
	flags.StringVar(&request.Hostname, "hostname", "", "host name (default: the container's name)")
	flags.StringVar(&request.Entrypoint, "entrypoint", "", "program to run instead of the image's entrypoint")
	flags.StringSliceVar(&request.StageTo, "stage-to", nil,
		"copy the image's layers to these nodes once the container runs, so that it can move there quickly")
	completeNodes(cmd, "stage-to")
	flags.BoolVar(&request.ReadOnly, "read-only", false, "mount the root file system read-only")
	flags.StringArrayVarP(&request.Labels, "label", "l", nil, "label, NAME=VALUE")
	addRestartFlag(cmd, request)
	addLifeFlags(cmd, request)
	return cmd
}

// addLifeFlags adds the flags for how the container is stopped, and when a started one counts as healthy.
func addLifeFlags(cmd *cobra.Command, request *api.RunRequest) {
	flags := cmd.Flags()
	flags.StringVar(&request.StopSignal, "stop-signal", "",
		"signal that stops the container (default: the image's, or SIGTERM)")
	secondsVar(cmd, &request.StopTimeoutSeconds, "stop-timeout",
		"time to wait after the stop signal before killing the container (default 10s)")
	flags.StringVar(&request.HealthCommand, "health-cmd", "",
		"shell command that succeeds if the container is healthy; none disables the check "+
			"(default: the image's check)")
	secondsVar(cmd, &request.HealthIntervalSeconds, "health-interval",
		"time between health checks (default: the image's, or 30s)")
	secondsVar(cmd, &request.HealthTimeoutSeconds, "health-timeout",
		"time allowed for a health check (default: the image's, or 30s)")
	flags.Int32Var(&request.HealthRetries, "health-retries", 0,
		"consecutive failures that make the container unhealthy (default: the image's, or 3)")
	secondsVar(cmd, &request.StartTimeoutSeconds, "start-timeout",
		"time to become healthy after a migration has started the container "+
			"(default: the health check's start period and retries, or 1m)")
}

// secondsVar adds a flag for a duration greater than 0, kept in seconds.
func secondsVar(cmd *cobra.Command, value *float64, name, usage string) {
	cmd.Flags().Var(&cli.Parsed[float64]{Kind: "duration", Parse: func(text string) (float64, error) {
		d, err := time.ParseDuration(text)
		if err == nil && (d <= 0 || d > engine.MaxLifeTimeout) {
			err = fmt.Errorf("must be more than 0 and at most %s", engine.MaxLifeTimeout)
		}
		*value = d.Seconds()
		return *value, err
	}}, name, usage)
}

// parseRun fills a request from flags that need more than their value.
func parseRun(request *api.RunRequest, memory string, volumes, memories []string) error {
	if memory != "" {
		bytes, err := units.ParseSize(memory)
		if err != nil {
			return fmt.Errorf("--memory: %w", err)
		}
		request.MemoryBytes = bytes
	}
	fillEnvironment(request.Env)
	for _, text := range volumes {
		volume, err := parseVolume(text)
		if err != nil {
			return err
		}
		request.Volumes = append(request.Volumes, volume)
	}
	for _, text := range memories {
		volume, err := parseTmpfs(text)
		if err != nil {
			return err
		}
		request.Volumes = append(request.Volumes, volume)
	}
	return nil
}

// fillEnvironment gives each variable without a value its value from this process's environment.
func fillEnvironment(variables []string) {
	for i, one := range variables {
		if !strings.Contains(one, "=") {
			variables[i] = one + "=" + os.Getenv(one)
		}
	}
}

func run(cmd *cobra.Command, agent api.AgentClient, request *api.RunRequest, detach bool) error {
	reply, err := agent.Run(cmd.Context(), request)
	if err != nil {
		return err
	}
	if detach {
		fmt.Fprintln(cmd.OutOrStdout(), reply.Id)
		return nil
	}
	logs := &api.LogsRequest{Reference: reply.Id, Follow: true, Tail: -1}
	err = showLogs(cmd, agent, logs)
	if err == nil {
		err = waitFor(cmd, agent, reply.Id)
	}
	if status.Code(err) == codes.NotFound {
		return errAway
	}
	if cmd.Context().Err() != nil {
		return cli.Exit(cli.ExitSignal,
			fmt.Errorf("detached; the container keeps running: follow its output "+
				"with \"godwit logs -f %.12s\", or stop it with \"godwit stop %.12s\"", reply.Id, reply.Id))
	}
	return err
}

// errAway tells a user who waits for a container's exit that the container has left this node.
var errAway = errors.New("the container is no longer on this node: if it was moved, " +
	"\"godwit migration ls\" shows where")

func waitFor(cmd *cobra.Command, agent api.AgentClient, reference string) error {
	reply, err := agent.Wait(cmd.Context(), &api.ContainerRequest{Reference: reference})
	if err != nil {
		return err
	}
	if reply.ExitCode != 0 {
		return cli.Exit(int(reply.ExitCode), nil)
	}
	return nil
}

func newWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "wait CONTAINER",
		Short:   "Wait for a container to exit, and exit with the same code",
		Example: "  godwit wait job",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error { return waitFor(cmd, agent, args[0]) })
		},
	}
}

const psLong = `Ps lists the containers of this node, including those of Docker, Podman, containerd and LXC.

Ps also lists a container that has ended if its restart policy is to start it again (--all: every container
that is not running). The column NOT RUNNING says why a container of "godwit run" is not running.

The frozen copy of a container that has left is shown as "moved to NODE", or as "in doubt, NODE?" while it is
unknown where the container runs.

If an operator has to step in, ps prints an alarm to stderr and exits with 4. There are three such
cases: another node runs the same container; a migration has left the container frozen and the nodes cannot
find out where it runs; or another program has thawed the frozen copy of a container that the target of its
migration may run.`

func newPsCommand() *cobra.Command {
	var all, asJSON, everywhere, listEngines bool
	cmd := &cobra.Command{
		Use:     "ps",
		Short:   "List the containers of this node, of all engines",
		Long:    psLong,
		Example: "  godwit ps\n  godwit ps --all --json\n  godwit ps --engines",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if listEngines {
				return printEngines(cmd.OutOrStdout(), asJSON)
			}
			if everywhere || asksController(cmd) {
				return clusterContainers(cmd, all, asJSON)
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.List(cmd.Context(), &api.ListRequest{All: all})
				if err != nil {
					return err
				}
				if err := printContainers(cmd.OutOrStdout(), reply, asJSON); err != nil {
					return err
				}
				return alarmed(cmd.ErrOrStderr(), reply.Alarms)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include containers that are not running")
	cmd.Flags().BoolVar(&listEngines, "engines", false,
		"list what each engine can do instead, as this version of Godwit knows it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&everywhere, "all-nodes", "A", false, "list the containers of all nodes; needs "+
		"--controller")
	cmd.MarkFlagsMutuallyExclusive("all", "engines")
	return cmd
}

// printEngines prints the table of engines. It asks no agent: the table is part of the program.
func printEngines(w io.Writer, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(w, engines.Facts())
	}
	_, err := io.WriteString(w, engine.Table(engines.Facts()))
	return err
}

func printContainers(w io.Writer, reply *api.ListReply, asJSON bool) error {
	containers := make([]engine.Container, len(reply.ContainersJson))
	for i, document := range reply.ContainersJson {
		if err := json.Unmarshal(document, &containers[i]); err != nil {
			return fmt.Errorf("answer of the agent: %w", err)
		}
	}
	if asJSON {
		return cli.PrintJSON(w, containers)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header, why := "ID\tNAME\tIMAGE\tSTATE\tADDRESS\tSINCE", func(engine.Container) string { return "" }
	if slices.ContainsFunc(containers, func(c engine.Container) bool { return c.NotRunning != "" }) {
		header, why = header+"\tNOT RUNNING",
			func(c engine.Container) string { return "\t" + cmp.Or(c.NotRunning, "-") }
	}
	fmt.Fprintln(table, header)
	for _, c := range containers {
		state, since := stateOf(c), c.Started
		if c.State == engine.Exited {
			state, since = fmt.Sprintf("exited (%d)", c.ExitCode), c.Finished
		}
		address := "-" // the engine's own network assigns the address
		if c.Definition.Network.Address.IsValid() {
			address = c.Definition.Network.Address.String()
		}
		fmt.Fprintf(table, "%.12s\t%s\t%s\t%s\t%s\t%s%s\n", c.Definition.ID, engine.Label(c.Definition),
			c.Definition.Image, state, address, ago(since), why(c))
	}
	return table.Flush()
}

// stateOf returns the state of a container. For a frozen copy, it says where the container is.
func stateOf(c engine.Container) string {
	if c.State == engine.Frozen && c.Leaving != nil {
		switch migration.State(c.Migration) {
		case migration.InDoubt:
			return "in doubt, " + c.Leaving.Target + "?"
		case migration.Committed:
			return "moved to " + c.Leaving.Target
		}
	}
	return string(c.State)
}

// alarmed prints the alarms and, if there are any, returns an error with their exit code.
func alarmed(w io.Writer, alarms []*api.Alarm) error {
	for _, one := range alarms {
		fmt.Fprintf(w, "ALARM: %s (%.12s), since %s: %s\n", one.Name, one.Container,
			time.Unix(0, one.SinceUnixNanoseconds).UTC().Format(time.RFC3339), one.Text)
	}
	if len(alarms) > 0 {
		return cli.Exit(exitAlarm, nil)
	}
	return nil
}

func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.FormatAge(time.Since(t)) + " ago"
}

func newInspectCommand() *cobra.Command {
	var measure time.Duration
	cmd := &cobra.Command{
		Use:   "inspect CONTAINER",
		Short: "Show details of a container, as JSON",
		Long: `Inspect shows a container's definition and state. For a running container, it also shows
memory, processes and connections.

How fast the container writes to memory, and what its pages contain, is included if it was measured recently
(godwit top), or with --measure.`,
		Example: "  godwit inspect cache | jq .definition.network\n  godwit inspect --measure 1s cache | " +
			"jq .measured.dirtying_curve",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				if measure > 0 {
					_, err := agent.Top(cmd.Context(),
						&api.TopRequest{Container: args[0], WindowSeconds: measure.Seconds()})
					if err != nil {
						return err
					}
				}
				reply, err := agent.Inspect(cmd.Context(), &api.ContainerRequest{Reference: args[0]})
				if err != nil {
					return err
				}
				return printRawJSON(cmd.OutOrStdout(), reply.ContainerJson)
			})
		},
	}
	positiveVar(cmd, &measure, "measure", 0,
		"measure writes and page contents for this long (default: show the latest measurement)")
	return cmd
}

func newLogsCommand() *cobra.Command {
	request := &api.LogsRequest{}
	cmd := &cobra.Command{
		Use:     "logs CONTAINER",
		Short:   "Show a container's output, including output from other nodes",
		Example: "  godwit logs -f cache\n  godwit logs --tail 20 cache",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Reference = args[0]
			if cmd.Flags().Changed("tail") && request.Tail < 0 {
				return cli.Usage(fmt.Errorf("--tail %d: must not be negative", request.Tail))
			}
			return withAgent(cmd, func(agent api.AgentClient) error { return showLogs(cmd, agent, request) })
		},
	}
	cmd.Flags().BoolVarP(&request.Follow, "follow", "f", false, "follow the output until the container exits")
	cmd.Flags().Int32Var(&request.Tail, "tail", -1, "number of lines to show from the end (default: all)")
	cmd.Flags().Lookup("tail").DefValue = "0" // otherwise help shows "(default -1)", too
	return cmd
}

func showLogs(cmd *cobra.Command, agent api.AgentClient, request *api.LogsRequest) error {
	stream, err := agent.Logs(cmd.Context(), request)
	if err != nil {
		return err
	}
	for {
		entry, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if entry.Stderr {
			out = cmd.ErrOrStderr()
		}
		if _, err := out.Write(entry.Data); err != nil {
			return err
		}
	}
}

func newStopCommand() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop CONTAINER...",
		Short: "Stop containers",
		Long: `Stop sends each container's first process its stop signal (SIGTERM, unless the image or run
--stop-signal says otherwise), and SIGKILL if it is still running when the grace period ends.

A stopped container stays stopped, whatever its restart policy, until "godwit start" starts it; with
--restart always it starts at the next boot, too. Its output can be read until it is removed, and its volumes
can be used until they are removed.`,
		Example: "  godwit stop --time 30s cache",
		Args:    cli.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if grace < 0 {
				return cli.Usage(fmt.Errorf("--time %s: must not be negative", grace))
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				return eachContainer(cmd, args, func(reference string) error {
					_, err := agent.Stop(cmd.Context(), &api.StopRequest{
						Reference: reference, GraceSeconds: grace.Seconds(),
						OwnGrace: !cmd.Flags().Changed("time"),
					})
					return err
				})
			})
		},
	}
	cmd.Flags().DurationVar(&grace, "time", 0,
		"grace period before SIGKILL (default: that of run --stop-timeout, or 10s)")
	return cmd
}

func newRmCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm CONTAINER...",
		Short:   "Remove containers",
		Example: "  godwit rm job\n  godwit rm --force cache",
		Args:    cli.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				return eachContainer(cmd, args, func(reference string) error {
					_, err := agent.Remove(cmd.Context(),
						&api.RemoveRequest{Reference: reference, Force: force})
					return err
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove running containers, too")
	return cmd
}

// eachContainer calls do for each container, prints the name of each that succeeded, and returns all errors.
func eachContainer(cmd *cobra.Command, references []string, do func(string) error) error {
	var failed []error
	for _, reference := range references {
		if err := do(reference); err != nil {
			failed = append(failed, errors.New(plainError(err)))
			continue
		}
		fmt.Fprintln(cmd.OutOrStdout(), reference)
	}
	return errors.Join(failed...)
}
