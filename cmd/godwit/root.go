package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
)

const rootLong = `Godwit moves a running container from one machine to another while its users stay connected:
memory, processes, open files, file system, volumes, address and TCP connections.

A node is a machine that runs "godwit agent". To try Godwit on one machine, use
godwit-lab, which "make build" puts into build/ of the source tree.`

// newRootCommand wires all commands together. No command registers itself.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "godwit", Short: "Live migration of running containers", Long: rootLong, Version: version,
	}
	root.PersistentFlags().String("socket", defaultSocket(),
		"unix socket of the agent (environment: GODWIT_SOCKET)")
	addControllerFlags(root)
	root.AddGroup(
		&cobra.Group{ID: "move", Title: "Move containers:"},
		&cobra.Group{ID: "run", Title: "Run containers (embedded engine):"},
		&cobra.Group{ID: "node", Title: "Nodes:"},
		&cobra.Group{ID: "machine", Title: "This machine:"},
	)
	cli.AddGroup(root, "move", newMigrateCommand(), newPlanCommand(), newMigrationCommand(), newThawCommand(),
		newStageCommand())
	cli.AddGroup(root, "run", newImageCommand(), newRunCommand(), newPsCommand(), newInspectCommand(),
		newTopCommand(),
		newLogsCommand(), newExecCommand(), newStartCommand(), newStopCommand(), newRmCommand(),
		newWaitCommand(), newVolumeCommand())
	cli.AddGroup(root, "node", newAgentCommand(), withAgentCommands(newNodeCommand()), newNodesCommand(),
		newAuditCommand(), newEngineCommand())
	cli.AddGroup(root, "machine", newDoctorCommand(), newSetupCommand())
	root.AddCommand(newVersionCommand(), cli.NewManCommand("godwit"))
	completeNames(root)
	cli.Finish(root)
	return root
}

func defaultSocket() string {
	if path := os.Getenv("GODWIT_SOCKET"); path != "" {
		return path
	}
	return "/run/godwit/agent.sock"
}
