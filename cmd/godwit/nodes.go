package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/units"
)

func newNodesCommand() *cobra.Command {
	var asJSON, measure bool
	cmd := &cobra.Command{
		Use:     "nodes",
		Short:   "List the known nodes, with round-trip time and bandwidth to each",
		Example: "  godwit nodes\n  godwit nodes --measure --json",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asksController(cmd) {
				return clusterNodes(cmd, asJSON)
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.Nodes(cmd.Context(), &api.NodesRequest{Measure: measure})
				if err != nil {
					return err
				}
				if asJSON {
					return cli.PrintJSON(cmd.OutOrStdout(), reply.Nodes)
				}
				return printNodes(cmd.OutOrStdout(), reply.Nodes)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&measure, "measure", true, "measure the bandwidth with a short probe")
	return cmd
}

func printNodes(w io.Writer, nodes []*api.Node) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table,
		"NODE\tADDRESS\tSTATE\tRTT\tJITTER\tBANDWIDTH\tBACK\tLOSS\tOVERLAY\tAUTHORITY\tVERSION")
	var errs []string
	for _, node := range nodes {
		state, rtt, jitter, bandwidth, back, loss := "reachable", "-", "-", "-", "-", "-"
		switch {
		case node.Self:
			state = "this node"
		case !node.Reachable:
			state = "unreachable"
			errs = append(errs, fmt.Sprintf("%s: %s", node.Name, plainText(node.Error)))
		}
		if node.OverlayError != "" {
			errs = append(errs, fmt.Sprintf("%s: %s", node.Name, plainText(node.OverlayError)))
		}
		if node.Reachable && node.RttSeconds > 0 {
			rtt, jitter = units.FormatSeconds(node.RttSeconds), units.FormatSeconds(node.JitterSeconds)
		}
		if node.Reachable && node.BandwidthBitsPerSecond > 0 {
			bandwidth, loss = units.FormatBits(node.BandwidthBitsPerSecond),
				fmt.Sprintf("%.2g %%", node.Loss*100)
		}
		if node.Reachable && node.BackBitsPerSecond > 0 {
			back = units.FormatBits(node.BackBitsPerSecond)
		}
		authority := "-"
		if node.Authority {
			authority = "yes"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", node.Name, node.Address, state,
			rtt, jitter,
			bandwidth, back, loss, cmp.Or(node.Overlay, "-"), authority, cmp.Or(node.Version, "-"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, text := range errs {
		fmt.Fprintln(w, text)
	}
	return nil
}

// withAgentCommands adds the node commands that need the agent to those that work without it.
func withAgentCommands(node *cobra.Command) *cobra.Command {
	node = withTokenCommand(node)
	node.AddCommand(newNodeRmCommand(), newNodePromoteCommand(), newNodeDemoteCommand())
	node.AddCommand(newNodeRolloverCommand())
	node.AddCommand(newControllerNodeCommands()...)
	return node
}

func withTokenCommand(node *cobra.Command) *cobra.Command {
	var ttl time.Duration
	var name string
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create a one-time token for another node to join",
		Long: `Token prints a token that lets one node join. The token can be used once, until it expires.
It also proves to the new node that it talks to the right node. Run token on a node with the authority.

With --node, only a node of that name can use the token, even if a node of that name has joined before. Use it
for a machine that lost its disk and should get its number and addresses back.`,
		Example: "  godwit node token --ttl 1h\n  godwit node token --node b",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.Token(cmd.Context(),
					&api.TokenRequest{TtlSeconds: ttl.Seconds(), Node: name})
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), reply.Token)
				fmt.Fprintf(cmd.ErrOrStderr(),
					"On the new node: godwit node join %s --token-file - --address ITS_ADDRESS\n",
					reply.Address)
				return nil
			})
		},
	}
	positiveVar(cmd, &ttl, "ttl", 15*time.Minute, "how long the token is valid")
	cmd.Flags().StringVar(&name, "node", "",
		"the only node that may use the token (default: any node that has not joined before)")
	node.AddCommand(cmd)
	return node
}
