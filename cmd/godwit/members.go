package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
)

const nodeRmLong = `Rm removes a node from the cluster for good, even a lost or stolen one. Run it on
another node, one with the authority.

The authority signs the removal, and all nodes keep it and pass it on. From then on no node accepts
connections from the removed node, connects to it, or renews its certificate, and existing connections are
closed. A migration under way with the removed node fails, or is in doubt until "godwit migration resolve"
decides it. The removed node's containers keep running there, outside the cluster: move them away first if
you can reach the node.

A node that rm cannot tell now will hear of the removal from any other node. You may use the name again; the
number will be new. A machine that was removed by mistake joins again with "godwit node join --force".`

func newNodeRmCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm NODE",
		Short:   "Remove a node from the cluster for good, even a lost one",
		Long:    nodeRmLong,
		Example: "  godwit node rm c\n  godwit node rm --force c   # even if a migration with c is under way",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.RemoveNode(cmd.Context(),
					&api.RemoveNodeRequest{Name: args[0], Force: force})
				if err != nil {
					return err
				}
				printRemoved(cmd.OutOrStdout(), args[0], reply)
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false,
		"remove the node even if it has the authority's key, or a migration with it is under way")
	return cmd
}

func printRemoved(w io.Writer, name string, reply *api.RemoveNodeReply) {
	fmt.Fprintf(w, "Node %s is removed (version %d of the list of removed nodes).\n", name, reply.Version)
	if len(reply.Told) > 0 {
		fmt.Fprintf(w, "These nodes know: %s.\n", strings.Join(reply.Told, ", "))
	}
	if len(reply.Untold) > 0 {
		fmt.Fprintf(w, "These nodes could not be told now, and still accept the removed node until they "+
			"hear of the removal: %s.\n", strings.Join(reply.Untold, ", "))
	}
}

const nodePromoteLong = `Promote gives a node the key of the cluster's authority. That node can
then admit and remove nodes and renew certificates, too, so that the cluster does not depend on one node. The
key travels over the encrypted connection between the two nodes, into a file that only root can read. Run
promote on a node that has the authority. Root on the other node can then admit any node: promote only a node
that you trust as much as this one.`

func newNodePromoteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "promote NODE",
		Short:   "Give another node the authority to admit and remove nodes",
		Long:    nodePromoteLong,
		Example: "  godwit node promote b",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				if _, err := agent.PromoteNode(cmd.Context(), &api.NodeRequest{Name: args[0]}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "Node %s now has the authority, too.\n", args[0])
				return err
			})
		},
	}
}

func newNodeDemoteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demote NODE",
		Short: "Take the authority away from another node",
		Long: `Demote makes another node delete its key of the cluster's authority. Run it on a node that
has the authority. It does not protect against a node that an attacker controls: that node may have a copy
of the key.`,
		Example: "  godwit node demote a",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				if _, err := agent.DemoteNode(cmd.Context(), &api.NodeRequest{Name: args[0]}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "Node %s no longer has the authority.\n", args[0])
				return err
			})
		},
	}
}
