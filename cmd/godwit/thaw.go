package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
)

const thawLong = `Thaw lets a container go on that a migration has left frozen on this node.

The node to which it was leaving is asked first: if the container runs there, or that node cannot be reached, or cannot tell, thaw
is refused. With --force it does without that node's word where there is none, and prints the last contact with it and what may
happen. A container that the other node says to run there is never thawed.`

func newThawCommand() *cobra.Command {
	request := &api.ThawRequest{}
	cmd := &cobra.Command{
		Use:     "thaw CONTAINER",
		Short:   "Let a container go on that a migration has left frozen",
		Long:    thawLong,
		Example: "  godwit thaw cache\n  godwit thaw cache --force   # the other node is lost for good",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Reference = args[0]
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.Thaw(cmd.Context(), request)
				if err == nil && reply.Notice != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), reply.Notice)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&request.Force, "force", false, "also if the other node cannot be reached, or cannot tell")
	return cmd
}
