package main

import (
	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/engine"
)

// addRestartFlag adds the restart policy.
func addRestartFlag(cmd *cobra.Command, request *api.RunRequest) {
	cmd.Flags().Var(&cli.Parsed[string]{Kind: "policy", Parse: func(text string) (string, error) {
		_, err := engine.ParseRestartPolicy(text)
		request.Restart = text
		return text, err
	}}, "restart",
		"when to start the container again: no, on-failure[:N], always or unless-stopped (default: no)")
	completeWords(cmd, "restart", string(engine.RestartNo), string(engine.RestartOnFailure),
		string(engine.RestartAlways), string(engine.RestartUnlessStopped))
}

const startLong = `Start starts containers of "godwit run" that have ended, with their files and their
addresses. To start a container of another engine, use that engine.

Start refuses a container that is being migrated, or that another node has. The agent asks all other nodes;
unless the agent has seen the container run here, each of them must answer. --force starts the container even
if a node cannot be reached, if the state of this node was restored or copied since the container was last
started here, or if the journal of its migration cannot be read: then two copies may run. After
"godwit node rm", start no longer waits for the removed node.`

func newStartCommand() *cobra.Command {
	request := &api.StartRequest{}
	cmd := &cobra.Command{
		Use:   "start [flags] CONTAINER...",
		Short: "Start containers that have ended",
		Long:  startLong,
		Example: `  godwit start cache
  godwit start --force cache   # the other nodes are down, and none of them has it
  godwit start $(godwit ps --all --json | jq -r '.[] | select(.state=="exited").definition.name')`,
		Args: cli.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				return eachContainer(cmd, args, func(reference string) error {
					request.Reference = reference
					_, err := agent.Start(cmd.Context(), request)
					return err
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&request.Force, "force", "f", false,
		"start even if it is unknown whether another node has the container")
	return cmd
}
