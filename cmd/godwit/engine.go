package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/engine/docker"
	"github.com/godwit/godwit/internal/engine/door"
	"github.com/godwit/godwit/internal/engine/moving"
)

// newEngineCommand is the group of commands around the container engines of a node.
func newEngineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Have this node's container engines take containers that move here",
		Long: "Containers of Docker leave a node as they are, and arrive through godwit-runc, an OCI runtime that is runc but for containers that\n" +
			"arrive. Docker has to know it at each node to which containers are to move. It is not restarted for that.",
	}
	cmd.AddCommand(newEngineSetupCommand(), newEngineRemoveCommand())
	return cmd
}

// runtimeLink is where godwit-runc is: beside the program that it is.
func runtimeLink() (program, link string, err error) {
	program, err = os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return "", "", fmt.Errorf("find this program: %w", err)
	}
	return program, filepath.Join(filepath.Dir(program), door.Program), nil
}

func newEngineSetupCommand() *cobra.Command {
	var config docker.DaemonConfig
	cmd := &cobra.Command{
		Use:   "setup docker",
		Short: "Make godwit-runc known to Docker",
		Long: "Setup makes a link godwit-runc beside this program, adds it to the runtimes in Docker's configuration, and has Docker read that.\n" +
			"The default runtime stays, and so do all containers.",
		Example:   "  godwit engine setup docker",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{docker.Name},
		RunE: func(cmd *cobra.Command, _ []string) error {
			program, link, err := runtimeLink()
			if err != nil {
				return err
			}
			if err := moving.Link(program, link); err != nil {
				return err
			}
			if err := config.AddRuntime(link); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Docker knows runtime %s: %s\n", docker.Runtime, link)
			return nil
		},
	}
	addDaemonFlags(cmd, &config)
	return cmd
}

func newEngineRemoveCommand() *cobra.Command {
	var config docker.DaemonConfig
	cmd := &cobra.Command{
		Use:   "remove docker",
		Short: "Undo setup",
		Long: "Remove takes godwit-runc out of Docker's configuration again. As long as a container has come by it Docker needs it to start\n" +
			"that container, and nothing is removed.",
		Example:   "  godwit engine remove docker",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{docker.Name},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, link, err := runtimeLink()
			if err != nil {
				return err
			}
			if err := config.RemoveRuntime(cmd.Context()); err != nil {
				return err
			}
			if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Docker does not know runtime %s any more\n", docker.Runtime)
			return nil
		},
	}
	addDaemonFlags(cmd, &config)
	return cmd
}

func addDaemonFlags(cmd *cobra.Command, config *docker.DaemonConfig) {
	cmd.Flags().StringVar(&config.Path, "config", "/etc/docker/daemon.json", "Docker's configuration")
	cmd.Flags().StringVar(&config.PIDFile, "pidfile", "/run/docker.pid", "file with the number of Docker's process")
	cmd.Flags().StringVar(&config.Socket, "docker-socket", docker.DefaultSocket, "socket of Docker")
	config.DataDir = docker.DefaultDataDir // if the configuration does not say otherwise
}
