package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
)

// version is stamped by the Makefile.
var version = "0.1.0-dev"

func newVersionCommand() *cobra.Command {
	var agentToo bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program, and of the agent",
		Example: "  godwit version --agent",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), "godwit", version)
			if !agentToo {
				return nil
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.Version(cmd.Context(), &api.VersionRequest{})
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "agent %s on node %s\n", reply.Version, reply.Node)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&agentToo, "agent", false, "also ask the agent")
	return cmd
}
