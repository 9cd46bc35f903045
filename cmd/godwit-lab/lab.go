package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/units"
)

// labCommands returns the commands that manage labs.
func labCommands() []*cobra.Command {
	all := []*cobra.Command{newUpCommand(), newDownCommand(), newStatusCommand(), newLinkCommand(),
		newExecCommand(), newClientCommand()}
	for _, cmd := range all {
		cmd.Flags().String("name", lab.DefaultName, "name of the lab; several can be up at once")
	}
	return all
}

func labName(cmd *cobra.Command) string { return cmd.Flag("name").Value.String() }

func openLab(cmd *cobra.Command) (*lab.Lab, error) { return lab.Open(labName(cmd)) }

func newUpCommand() *cobra.Command {
	config := lab.Config{Link: lab.Link{BandwidthBitsPerSecond: 100_000_000, RTT: 20 * time.Millisecond}}
	var wires string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make a lab and start its agents",
		Long: `Make a lab: nodes, a link between every two of them, and an agent in each node.

Links are shaped in both directions, by the kernel's netem if available, otherwise by Godwit's own relay. Each
link is measured when it comes up, and a warning says if this machine cannot reach the requested figures.`,
		Example: `  godwit-lab up
  godwit-lab up --nodes 3 --bandwidth 10mbit --rtt 100ms --jitter 5ms --loss 0.1%
  godwit-lab up --name lan --bandwidth 1gbit --rtt 400us
  godwit-lab up --name small --state-size 64MiB`,
		Args: cli.NoArguments,
	}
	link := addLinkFlags(cmd, config.Link)
	size := &cli.Parsed[int64]{Kind: "size", Text: "0", Parse: units.ParseSize}
	flags := cmd.Flags()
	flags.IntVar(&config.Nodes, "nodes", 2, "number of nodes")
	flags.Var(size, "state-size",
		"keep each node's state in a memory file system of this size, such as 256MiB")
	flags.BoolVar(&config.Bare, "bare", false, "start nodes without identities and agents")
	flags.BoolVar(&config.NoCheck, "no-check", false, "do not measure the links")
	flags.StringVar(&config.Program, "program", "",
		"the godwit program (default: the one beside this program or in PATH)")
	flags.StringVar(&wires, "wires", "",
		"how to emulate links: netem or relay (default: netem if the kernel has it)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config.Name, config.StateSizeBytes, config.Wires = labName(cmd), size.Value, lab.Wires(wires)
		link.apply(&config.Link)
		return labUp(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), config)
	}
	return cmd
}

func labUp(ctx context.Context, out, errs io.Writer, config lab.Config) error {
	config.Progress = func(line string) { fmt.Fprintln(out, line) }
	l, err := lab.Up(ctx, config)
	if err != nil {
		return err
	}
	status, err := l.Status()
	if err != nil {
		return err
	}
	for _, link := range status.Links {
		if link.Measured != nil && !link.Measured.OK {
			fmt.Fprintf(errs, "godwit-lab: warning: link %s-%s does not meet the requested settings: %s\n",
				link.A, link.B, strings.Join(link.Measured.Problems, "; "))
		}
	}
	name := ""
	if config.Name != lab.DefaultName {
		name = " --name " + config.Name
	}
	first := "nodes"
	if config.Bare {
		first = "doctor"
	}
	fmt.Fprintf(out, "lab %s is up; try: godwit-lab exec%s a -- godwit %s; end it with: godwit-lab down%s\n",
		config.Name, name, first, name)
	return nil
}

func newDownCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab and everything in it",
		Long: `Remove a lab: its processes, namespaces, cgroups and files. The command can be run at any
time, after any crash, and repeatedly; it removes whatever it finds of the lab.`,
		Example: `  godwit-lab down
  godwit-lab down --name lan
  godwit-lab down --all`,
		Args: cli.NoArguments,
	}
	cmd.Flags().BoolVar(&all, "all", false, "every lab on this machine")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !all {
			return lab.Down(labName(cmd))
		}
		names, err := lab.List()
		for _, name := range names {
			err = errors.Join(err, lab.Down(name))
		}
		return err
	}
	return cmd
}

func newStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, links and clients of the labs that are up",
		Long: "Show the nodes, links and clients of the lab given by --name, or of every lab if none is " +
			"given.",
		Example: `  godwit-lab status
  godwit-lab status --name lan --json`,
		Args: cli.NoArguments,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, `print {"labs": [...]} as JSON`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		labs, err := labStatuses(cmd)
		if err != nil {
			return err
		}
		if asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"labs": labs})
		}
		return printLabs(cmd.OutOrStdout(), labs)
	}
	return cmd
}

func labStatuses(cmd *cobra.Command) ([]lab.Status, error) {
	names := []string{labName(cmd)}
	if !cmd.Flag("name").Changed {
		var err error
		if names, err = lab.List(); err != nil {
			return nil, err
		}
	}
	statuses := []lab.Status{}
	for _, name := range names {
		l, err := lab.Open(name)
		if err != nil {
			return nil, err
		}
		status, err := l.Status()
		if err != nil {
			return nil, err
		}
		statuses = append(statuses, status)
	}
	return statuses, nil
}

func printLabs(out io.Writer, labs []lab.Status) error {
	if len(labs) == 0 {
		fmt.Fprintln(out, "no lab is up")
		return nil
	}
	for _, status := range labs {
		fmt.Fprintf(out, "lab %s, links by %s%s\n", status.Name, status.Wires, relayTrouble(status))
		table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		for _, node := range status.Nodes {
			agent := ""
			if node.Agent.PID == 0 {
				agent = "not started by the lab"
			}
			fmt.Fprintf(table, "  node %s\t%s\t%s\tagent %s\n",
				node.Name, node.Address, running(node.Init), cmp.Or(agent, running(node.Agent)))
		}
		for _, client := range status.Clients {
			fmt.Fprintf(table, "  client %s\t%s\t%s\tat node %s\n",
				client.Name, client.Address, running(client.Init), client.Node)
		}
		for _, link := range status.Links {
			fmt.Fprintf(table, "  link %s-%s\t%s\n", link.A, link.B, link.Link())
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func relayTrouble(status lab.Status) string {
	if status.Relay != nil && !status.Relay.Running {
		return " (dead: nothing gets through; take the lab down and up again)"
	}
	return ""
}

func running(p lab.ProcessStatus) string {
	if !p.Running {
		return "not running"
	}
	return fmt.Sprintf("pid %d", p.PID)
}

func newLinkCommand() *cobra.Command {
	var down, up bool
	cmd := &cobra.Command{
		Use:   "link A B",
		Short: "Change a link while it is in use, or take it down and up",
		Long: `Change the link between two nodes, or between a client and its node. Settings without a flag
stay as they are; without any flag, the link is shown. A link that is down drops everything silently, like a
cut cable.`,
		Example: `  godwit-lab link a b
  godwit-lab link a b --bandwidth 10mbit --rtt 100ms
  godwit-lab link a b --down
  godwit-lab link a b --up
  godwit-lab link client a --rtt 30ms`,
		Args: cli.Arguments(cobra.ExactArgs(2)),
	}
	link := addLinkFlags(cmd, lab.Link{})
	cli.OnlyChanges(cmd)
	cmd.Flags().BoolVar(&down, "down", false, "take the link down")
	cmd.Flags().BoolVar(&up, "up", false, "take the link up")
	cmd.MarkFlagsMutuallyExclusive("down", "up")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := openLab(cmd)
		if err != nil {
			return err
		}
		if link.any() || down || up {
			err := l.ChangeLink(args[0], args[1], func(shape *lab.Link) {
				link.apply(shape)
				shape.Down = (shape.Down || down) && !up
			})
			if err != nil {
				return err
			}
		}
		shape, err := l.Link(args[0], args[1])
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "link %s-%s: %s\n", args[0], args[1], shape)
		return nil
	}
	return cmd
}

func newExecCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE|CLIENT -- COMMAND [ARGUMENT...]",
		Short: "Run a command in a node or client",
		Long: `Run a command in a node or client, and exit with its code. In a node, "godwit" talks to the
node's own agent.`,
		Example: `  godwit-lab exec a -- godwit ps
  godwit-lab exec client -- redis-cli -h 10.88.1.2 ping
  godwit-lab exec --name lan b -- bash`,
		Args: cli.Arguments(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := openLab(cmd)
			if err != nil {
				return err
			}
			return l.Become(args[0], args[1:]...)
		},
	}
}

func newClientCommand() *cobra.Command {
	var client string
	var move, remove bool
	cmd := &cobra.Command{
		Use:   "client NODE",
		Short: "Attach a client to a node, or move it to another",
		Long: `Make a client: a network of its own with an address. The client is attached to a node and
reaches everything through that node. A client that moves to another node keeps its address and connections,
like a phone in a moving car.

Its link to the node is as fast as this machine allows, unless you shape it. The client shares this machine's
files.`,
		Example: `  godwit-lab client a
  godwit-lab client a --client phone --bandwidth 20mbit --rtt 30ms
  godwit-lab exec phone -- ping -c 1 10.77.0.2
  godwit-lab client b --client phone --move`,
		Args: cli.Arguments(cobra.RangeArgs(0, 1)),
	}
	link := addLinkFlags(cmd, lab.Link{})
	cmd.Flags().StringVar(&client, "client", lab.DefaultClient, "name of the client")
	cmd.Flags().BoolVar(&move, "move", false, "move an existing client to NODE and keep its address")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the client and end its processes")
	cmd.MarkFlagsMutuallyExclusive("move", "remove")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if remove != (len(args) == 0) {
			return cli.Usage(errors.New("give a node, or --remove and no node"))
		}
		l, err := openLab(cmd)
		if err != nil {
			return err
		}
		if remove {
			return l.RemoveClient(client)
		}
		return labClient(cmd.OutOrStdout(), l, client, args[0], move, link)
	}
	return cmd
}

func labClient(out io.Writer, l *lab.Lab, client, node string, move bool, link *linkFlags) error {
	if move {
		if err := l.MoveClient(client, node); err != nil {
			return err
		}
		if link.any() {
			if err := l.ChangeLink(client, node, link.apply); err != nil {
				return err
			}
		}
	} else {
		var shape lab.Link
		link.apply(&shape)
		if err := l.Client(client, node, shape); err != nil {
			return err
		}
	}
	address, err := l.Address(client)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "client %s has %s, attached to node %s\n", client, address, node)
	return nil
}
