package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

const rootLong = `Godwit moves a running container from one machine to another while its users stay connected:
memory, processes, open files, file system, volumes, address and TCP connections.

A node is a machine that runs "godwit agent". Try it on this one: "godwit lab up", or "godwit demo".`

// newRootCommand wires all commands together. Nothing registers itself.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "godwit",
		Short:         "Live migration of running containers",
		Long:          rootLong,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &codedError{exitUsage, fmt.Errorf("%w (see %q)", err, cmd.CommandPath()+" --help")}
	})
	root.PersistentFlags().String("socket", defaultSocket(), "unix socket of the agent (environment: GODWIT_SOCKET)")
	root.AddGroup(
		&cobra.Group{ID: "move", Title: "Move containers:"},
		&cobra.Group{ID: "run", Title: "Run containers (embedded engine):"},
		&cobra.Group{ID: "node", Title: "Nodes:"},
		&cobra.Group{ID: "try", Title: "Try, measure, check:"},
	)
	addGroup(root, "move", newMigrateCommand(), newMigrationCommand())
	addGroup(root, "run", newImageCommand(), newRunCommand(), newPsCommand(), newInspectCommand(), newLogsCommand(),
		newExecCommand(), newStopCommand(), newRmCommand(), newWaitCommand())
	addGroup(root, "node", newAgentCommand(), withTokenCommand(newNodeCommand()), newNodesCommand())
	addGroup(root, "try", newLabCommand(), newDemoCommand(), newBenchCommand(), newDoctorCommand())
	root.AddCommand(newVersionCommand())
	return root
}

func addGroup(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, command := range commands {
		command.GroupID = group
		root.AddCommand(command)
	}
}

func defaultSocket() string {
	if path := os.Getenv("GODWIT_SOCKET"); path != "" {
		return path
	}
	return "/run/godwit/agent.sock"
}

// usageArgs makes a wrong number of arguments a usage error that shows how the command is used.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &codedError{exitUsage, fmt.Errorf("%w; usage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}
