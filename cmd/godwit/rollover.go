package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
)

const nodeRolloverLong = `Rollover makes a new key for the authority of the cluster. Run it on a node with
the authority, as a routine, or because the key may have been stolen.

Each node that hears of the rollover renews its certificate under the new key by itself. Meanwhile
certificates of both keys are valid, so nothing is interrupted, and migrations go on. The old key counts
no more once all nodes have renewed, at the latest after the time of --within. A node that has not
renewed by then has to join again. Other nodes with the authority get the new key, too. Unused tokens
cannot be used any more.

If the key may have been stolen, first remove or demote the node from which it was stolen. Then --now
gives the nodes 30 seconds, and after that also cuts connections made with old certificates: a migration
that has such a connection fails, or is in doubt.

--status shows which nodes have renewed their certificates. --finish ends a rollover without waiting for
the others: use it if the node that began the rollover is lost, on another one that got the new key. If
no node that is left has the new key, --force on a node with the old key begins another rollover.`

// rolloverFlags are the flags of node rollover.
type rolloverFlags struct {
	within                             time.Duration
	now, finish, status, force, asJSON bool
}

func (f *rolloverFlags) check() error {
	switch {
	case f.status && (f.now || f.finish || f.force || f.within != 0):
		return &codedError{exitUsage, errors.New("--status changes nothing: no flag but --json goes with it")}
	case f.within != 0 && (f.now || f.finish):
		return &codedError{exitUsage, errors.New("--within goes with neither --now nor --finish")}
	case f.finish && f.force:
		return &codedError{exitUsage, errors.New("--force begins a rollover, --finish ends one: give one")}
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
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			return withAgent(cmd, func(agent api.AgentClient) error { return flags.run(cmd, agent) })
		},
	}
	positiveVar(cmd, &flags.within, "within", 0, "how long nodes have to renew certificates (default: 720h)")
	options := cmd.Flags()
	options.BoolVar(&flags.now, "now", false, "end the old key in 30 seconds, and cut its connections")
	options.BoolVar(&flags.finish, "finish", false, "end the rollover without waiting for other nodes")
	options.BoolVar(&flags.status, "status", false, "only show which nodes have renewed their certificates")
	options.BoolVar(&flags.force, "force", false, "begin another rollover if the new key is lost")
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
		return printJSON(cmd.OutOrStdout(), reply)
	}
	printRollover(cmd.OutOrStdout(), reply)
	return nil
}

func printRollover(w io.Writer, r *api.RolloverReply) {
	fmt.Fprintf(w, "Authority: %s (after %d rollovers).\n", r.Authority, r.Version)
	if r.UnderWay {
		fmt.Fprintf(w, "A rollover is under way; the authority before, %s, is still trusted.\n", r.Previous)
	} else {
		fmt.Fprintln(w, "No rollover is under way.")
	}
	if r.EndsUnixSeconds != 0 {
		fmt.Fprintf(w, "It ends when all nodes have renewed their certificates, at the latest at %s.\n",
			time.Unix(r.EndsUnixSeconds, 0).UTC().Format(time.RFC3339))
	}
	for _, line := range []struct {
		text  string
		nodes []string
	}{
		{"Certificates of the newest authority", r.Renewed},
		{"Certificates not renewed yet", r.Waiting},
		{"Got the new key", r.Promoted},
		{"Could not be given the new key (\"godwit node promote\" does it later)", r.NotPromoted},
	} {
		if len(line.nodes) > 0 {
			fmt.Fprintf(w, "%s: %s.\n", line.text, strings.Join(line.nodes, ", "))
		}
	}
}
