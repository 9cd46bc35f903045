package main

import (
	"fmt"
	"os"
	"strings"

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
		Version:       version,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
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
	addGroup(root, "move", newMigrateCommand(), newPlanCommand(), newMigrationCommand(), newThawCommand(), newStageCommand())
	addGroup(root, "run", newImageCommand(), newRunCommand(), newPsCommand(), newInspectCommand(), newTopCommand(), newLogsCommand(),
		newExecCommand(), newStartCommand(), newStopCommand(), newRmCommand(), newWaitCommand(), newVolumeCommand())
	addGroup(root, "node", newAgentCommand(), withAgentCommands(newNodeCommand()), newNodesCommand(), newAuditCommand(), newEngineCommand())
	addGroup(root, "try", newLabCommand(), newDemoCommand(), newBenchCommand(), newDoctorCommand(), newSetupCommand())
	root.AddCommand(newVersionCommand(), newManCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	// A group of commands can only be asked for help, unless it has arguments itself: its usage is the one with a command.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}",
		"{{if and .Runnable (or (not .HasAvailableSubCommands) (ne .Use .Name))}}", 1))
	completeNames(root)
	refuseUnknown(root)
	return root
}

// refuseUnknown makes the name of a command that does not exist a usage error, which cobra does not.
func refuseUnknown(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		refuseUnknown(child)
	}
	if cmd.Name() == "help" {
		show := cmd.Run
		cmd.Run = nil
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if found, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
				return unknownCommand(found, rest)
			}
			show(cmd, args)
			return nil
		}
	}
	if !cmd.HasSubCommands() || cmd.Run != nil || cmd.RunE != nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

func unknownCommand(parent *cobra.Command, args []string) error {
	hint := fmt.Sprintf("see %q", parent.CommandPath()+" --help")
	if alike := parent.SuggestionsFor(args[0]); len(alike) > 0 {
		hint = "did you mean " + strings.Join(alike, " or ") + "?"
	}
	return &codedError{exitUsage, fmt.Errorf("%s has no command %q; %s", parent.CommandPath(), args[0], hint)}
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

// noArguments is for commands that have none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &codedError{exitUsage, fmt.Errorf("%s takes no argument, such as %q; usage: %s", cmd.CommandPath(), args[0], cmd.UseLine())}
	}
	return nil
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
