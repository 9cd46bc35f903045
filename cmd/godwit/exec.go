package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
)

func newExecCommand() *cobra.Command {
	start := &api.ExecStart{}
	cmd := &cobra.Command{
		Use:   "exec [flags] CONTAINER COMMAND [ARG...]",
		Short: "Run a command in a running container, and exit with its code",
		Example: "  godwit exec cache redis-cli incr visits\n  echo data | godwit exec -i web sh -c 'cat " +
			">/tmp/in'",
		Args: cli.Arguments(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			start.Reference, start.Args = args[0], args[1:]
			fillEnvironment(start.Env)
			return withAgent(cmd, func(agent api.AgentClient) error { return execIn(cmd, agent, start) })
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.BoolVarP(&start.Stdin, "interactive", "i", false, "forward stdin to the command")
	flags.StringArrayVarP(&start.Env, "env", "e", nil,
		"environment variable, NAME=VALUE; NAME alone copies the value from this shell")
	flags.StringVarP(&start.Dir, "workdir", "w", "", "working directory")
	flags.StringVarP(&start.User, "user", "u", "", "user, NAME or UID[:GID]")
	return cmd
}

func execIn(cmd *cobra.Command, agent api.AgentClient, start *api.ExecStart) error {
	stream, err := agent.Exec(cmd.Context())
	if err != nil {
		return err
	}
	if err := stream.Send(&api.ExecInput{Start: start}); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if start.Stdin {
		// This goroutine ends with the process: nothing waits for input that the container no longer reads.
		go sendStdin(cmd.InOrStdin(), stream)
	}
	for {
		output, err := stream.Recv()
		if err != nil {
			return err
		}
		if output.Ended {
			if output.ExitCode != 0 {
				return cli.Exit(int(output.ExitCode), nil)
			}
			return nil
		}
		if _, err := cmd.OutOrStdout().Write(output.Stdout); err != nil {
			return err
		}
		if _, err := cmd.ErrOrStderr().Write(output.Stderr); err != nil {
			return err
		}
	}
}

func sendStdin(stdin io.Reader, stream api.Agent_ExecClient) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := stdin.Read(buffer)
		if n > 0 && stream.Send(&api.ExecInput{Stdin: buffer[:n]}) != nil {
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				// The process may have ended; there is nobody to report the error to.
				_ = stream.Send(&api.ExecInput{EndOfStdin: true})
			}
			return
		}
	}
}
