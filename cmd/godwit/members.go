package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
)

const nodeRmLong = `Rm takes a node out of the cluster for good, also one that is lost or stolen. Run it on a node with the authority.

The removal is signed and passed on to all nodes, which keep it. From then on none of them lets the node connect, connects
to it, or renews its certificate, and connections that exist are closed. What is under way with it fails, or is in doubt
until "godwit migration resolve" decides it. Its containers go on where they are, but are no members' any more: move them
away first if the node can be reached.

A node that could not be told now hears of it from any other node. The name may be given again, with a new number: a
machine that was removed by mistake joins anew, with "godwit node join --force".`

func newNodeRmCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm NODE",
		Short:   "Remove a node from the cluster for good, also one that is lost",
		Long:    nodeRmLong,
		Example: "  godwit node rm c\n  godwit node rm --force c   # although a migration with it is under way",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.RemoveNode(cmd.Context(), &api.RemoveNodeRequest{Name: args[0], Force: force})
				if err != nil {
					return err
				}
				printRemoved(cmd.OutOrStdout(), args[0], reply)
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "although it has the authority's key, or a migration with it is under way")
	return cmd
}

func printRemoved(w io.Writer, name string, reply *api.RemoveNodeReply) {
	fmt.Fprintf(w, "Node %s is removed (version %d of the list of removed nodes).\n", name, reply.Version)
	if len(reply.Told) > 0 {
		fmt.Fprintf(w, "These nodes know: %s.\n", strings.Join(reply.Told, ", "))
	}
	if len(reply.Untold) > 0 {
		fmt.Fprintf(w, "These could not be told now, and still let it in until they hear of it: %s.\n", strings.Join(reply.Untold, ", "))
	}
}

const nodePromoteLong = `Promote gives a node the key of the cluster's authority: it can then admit and remove nodes and renew certificates, too, so
that no node is needed for good. The key goes over the connection between the two nodes, which is encrypted, and into a
file that only root can read there. Run it on a node that has the authority. Whoever is root on the other node can then admit
nodes of their own: promote only what you trust as much as this one.`

func newNodePromoteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "promote NODE",
		Short:   "Let another node admit and remove nodes, too",
		Long:    nodePromoteLong,
		Example: "  godwit node promote b",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				if _, err := agent.PromoteNode(cmd.Context(), &api.NodeRequest{Name: args[0]}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "Node %s has the authority, too.\n", args[0])
				return err
			})
		},
	}
}

func newNodeDemoteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demote NODE",
		Short: "Take the authority away from another node",
		Long: "Demote has another node delete its key of the cluster's authority. Run it on a node that keeps it. It is no\n" +
			"protection from a node that was taken over before: that may have a copy of the key.",
		Example: "  godwit node demote a",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				if _, err := agent.DemoteNode(cmd.Context(), &api.NodeRequest{Name: args[0]}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "Node %s does not have the authority any more.\n", args[0])
				return err
			})
		},
	}
}
