package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
)

const thawLong = `Thaw resumes a container that a migration has left frozen on this node.

Thaw asks the target of the migration first. It refuses if the container runs there, or if the target cannot
be reached or cannot tell. With --force, thaw does not need an answer; it prints the time of the last contact
with the target, and the possible consequences. If the target says that the container runs there, thaw refuses
even with --force.`

func newThawCommand() *cobra.Command {
	request := &api.ThawRequest{}
	cmd := &cobra.Command{
		Use:     "thaw CONTAINER",
		Short:   "Resume a container that a migration has left frozen",
		Long:    thawLong,
		Example: "  godwit thaw cache\n  godwit thaw cache --force   # the other node is lost for good",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
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
	cmd.Flags().BoolVar(&request.Force, "force", false,
		"thaw even if the target cannot be reached, or cannot tell")
	return cmd
}
