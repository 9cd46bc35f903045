package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
)

const nodeRolloverLong = `Rollover replaces the key of the cluster's authority. Run it on a node with the
authority, as a routine or because the key may have been stolen.

Each node that hears of the rollover renews its certificate under the new key. Until the rollover ends,
certificates of both keys are valid, so nothing is interrupted, and migrations go on. The rollover ends
when all nodes have renewed, or after the time of --within. Certificates of the old key are invalid then,
and a node that has not renewed must join again. A node that reaches no other node waits until it does.
Unused tokens become invalid when the rollover begins.

No other node gets the new key automatically. The command lists the nodes that claim to have had the old key:
promote those that you trust again ("godwit node promote NAME").

If the key may have been stolen, first remove or demote the node from which it was stolen. Then --now
gives the nodes 30 seconds, and after that also cuts connections made with old certificates: a migration
over such a connection fails, or ends up in doubt.

--status shows which nodes have renewed their certificates. --finish ends a rollover without waiting for
the other nodes. If the node that began the rollover is lost, run --finish on a node that was promoted
since. If no remaining node has the new key, run --force on a node with the old key: it begins another
rollover, which supersedes the first.`

// rolloverFlags are the flags of node rollover.
type rolloverFlags struct {
	within                             time.Duration
	now, finish, status, force, asJSON bool
}

func (f *rolloverFlags) check() error {
	switch {
	case f.status && (f.now || f.finish || f.force || f.within != 0):
		return cli.Usage(errors.New("--status cannot be combined with flags other than --json"))
	case f.within != 0 && (f.now || f.finish):
		return cli.Usage(errors.New("--within cannot be combined with --now or --finish"))
	case f.finish && f.force:
		return cli.Usage(errors.New("--force cannot be combined with --finish"))
	}
	return nil
}

func newNodeRolloverCommand() *cobra.Command {
	var flags rolloverFlags
	cmd := &cobra.Command{
		Use:   "rollover",
		Short: "Replace the key of the cluster's authority",
		Long:  nodeRolloverLong,
		Example: "  godwit node rollover                  # as a routine\n" +
			"  godwit node rollover --status\n" +
			"  godwit node rollover --now            # the key may have been stolen",
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			return withAgent(cmd, func(agent api.AgentClient) error { return flags.run(cmd, agent) })
		},
	}
	positiveVar(cmd, &flags.within, "within", 0, "time that nodes have to renew certificates (default: 720h)")
	options := cmd.Flags()
	options.BoolVar(&flags.now, "now", false, "end the old key in 30 seconds and cut its connections")
	options.BoolVar(&flags.finish, "finish", false, "end the rollover without waiting for other nodes")
	options.BoolVar(&flags.status, "status", false, "only show which nodes have renewed their certificates")
	options.BoolVar(&flags.force, "force", false, "supersede the rollover under way, whose key is lost")
	options.BoolVar(&flags.asJSON, "json", false, "print JSON")
	return cmd
}

func (f *rolloverFlags) run(cmd *cobra.Command, agent api.AgentClient) error {
	var reply *api.RolloverReply
	var err error
	if f.status {
		reply, err = agent.RolloverStatus(cmd.Context(), &api.RolloverStatusRequest{})
	} else {
		reply, err = agent.Rollover(cmd.Context(), &api.RolloverRequest{
			WithinSeconds: f.within.Seconds(), Now: f.now, Finish: f.finish, Force: f.force,
		})
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), reply)
	}
	printRollover(cmd.OutOrStdout(), reply)
	return nil
}

func printRollover(w io.Writer, r *api.RolloverReply) {
	fmt.Fprintf(w, "Authority: %s (rollovers: %d).\n", r.Authority, r.Version)
	if r.UnderWay {
		fmt.Fprintf(w, "A rollover is under way. Nodes still trust the previous authority, %s.\n", r.Previous)
	} else {
		fmt.Fprintln(w, "No rollover is under way.")
	}
	if r.EndsUnixSeconds != 0 {
		fmt.Fprintf(w, "The rollover ends when all nodes have renewed their certificates, or at %s.\n",
			time.Unix(r.EndsUnixSeconds, 0).UTC().Format(time.RFC3339))
	}
	for _, line := range []struct {
		text  string
		nodes []string
	}{
		{"Nodes with certificates of this authority", r.Renewed},
		{"Nodes that have not renewed their certificates", r.Waiting},
		{"Nodes that could not be reached", r.NotReached},
		{"Nodes that claim to have had the old key (\"godwit node promote NAME\" gives a node the new key)",
			r.NotPromoted},
	} {
		if len(line.nodes) > 0 {
			fmt.Fprintf(w, "%s: %s.\n", line.text, strings.Join(line.nodes, ", "))
		}
	}
}
