package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/engine/containerd"
	"github.com/godwit/godwit/internal/engine/docker"
	"github.com/godwit/godwit/internal/engine/door"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/podman"
)

// newEngineCommand is the group of commands around the container engines of a node.
func newEngineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Have this node's container engines take containers that move here",
		Long: "Containers of Docker, Podman and containerd leave a node as they are, and arrive through godwit-runc, an OCI runtime that is runc but for\n" +
			"containers that arrive. An engine has to know it at each node to which its containers are to move. None is restarted for that.",
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

// runtimes is how one engine is told of a runtime.
type runtimes interface {
	AddRuntime(path string) error
	// Unneeded is why it cannot be taken out.
	Unneeded(ctx context.Context) error
	RemoveRuntime(ctx context.Context) error
}

// engineSettings is how each engine that can be set up is configured.
type engineSettings struct {
	docker     docker.DaemonConfig
	podman     podman.Settings
	containerd containerd.Settings
}

// of is one engine, and its name for people.
func (s engineSettings) of(name string) (settings runtimes, title string) {
	switch name {
	case podman.Name:
		return s.podman, "Podman"
	case containerd.Name:
		return s.containerd, "containerd"
	}
	return s.docker, "Docker"
}

// others tells whether another engine needs godwit-runc still.
func (s engineSettings) others(ctx context.Context, name string) bool {
	if _, err := os.Lstat(s.podman.Path); name != podman.Name && err == nil {
		return true
	}
	if known, err := s.docker.Knows(); name != docker.Name && (known || err != nil) {
		return true
	}
	return name != containerd.Name && s.containerd.Needs(ctx)
}

// tell says what an engine knows now. One without a daemon knows it at once, and containerd is told with each container.
func (s engineSettings) tell(out io.Writer, name, title, link string) error {
	runs := true
	if name == docker.Name {
		var err error
		if runs, err = s.docker.Runs(); err != nil {
			return err
		}
	}
	if runs {
		fmt.Fprintf(out, "%s knows runtime %s: %s\n", title, oci.Runtime, link)
	} else {
		fmt.Fprintf(out, "%s does not run here; when it is started it will know runtime %s: %s\n", title, oci.Runtime, link)
	}
	return nil
}

func engineNames() []string { return []string{docker.Name, podman.Name, containerd.Name} }

func newEngineSetupCommand() *cobra.Command {
	var settings engineSettings
	var segment segmentSettings
	cmd := &cobra.Command{
		Use:   "setup docker|podman|containerd",
		Short: "Make godwit-runc known to an engine",
		Long: "Setup makes a link godwit-runc beside this program, and adds it to the runtimes in the engine's configuration: Docker's own file, which it\n" +
			"has Docker read, or a file of its own beside Podman's. containerd needs the link only. The default runtime stays, and so do all containers.\n" +
			"LXC needs no setup.\n\n" +
			"With --network, the engine gets a bridge network (containerd by a list of plugins of CNI's, for ctr run --cni); the agent has to run. Give it the same name and subnet on all nodes: each node's engine gives addresses of a\n" +
			"part of its own, and the agents route to all of them. So no two containers have the same address, and any of them can move anywhere.",
		Example:   "  godwit engine setup docker\n  godwit engine setup docker --network birds\n  godwit engine setup podman --network birds",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: engineNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			program, link, err := runtimeLink()
			if err != nil {
				return err
			}
			if err := moving.Link(program, link); err != nil {
				return err
			}
			engine, title := settings.of(args[0])
			if err := engine.AddRuntime(link); err != nil {
				return err
			}
			if err := settings.tell(cmd.OutOrStdout(), args[0], title, link); err != nil {
				return err
			}
			return segment.make(cmd.Context(), settings, args[0], cmd.OutOrStdout())
		},
	}
	addEngineFlags(cmd, &settings)
	segment.add(cmd)
	return cmd
}

func newEngineRemoveCommand() *cobra.Command {
	var settings engineSettings
	cmd := &cobra.Command{
		Use:   "remove docker|podman|containerd",
		Short: "Undo setup",
		Long: "Remove takes godwit-runc out of an engine's configuration again. As long as a container has come by it the engine needs it to start\n" +
			"that container, and nothing is removed. Networks that setup has made go, too.",
		Example:   "  godwit engine remove docker",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: engineNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, link, err := runtimeLink()
			if err != nil {
				return err
			}
			engine, title := settings.of(args[0])
			if err := engine.Unneeded(cmd.Context()); err != nil { // before anything is removed
				return err
			}
			if err := settings.removeSegments(cmd.Context(), args[0]); err != nil {
				return err
			}
			if err := engine.RemoveRuntime(cmd.Context()); err != nil {
				return err
			}
			if !settings.others(cmd.Context(), args[0]) {
				if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s does not know runtime %s any more\n", title, oci.Runtime)
			return nil
		},
	}
	addEngineFlags(cmd, &settings)
	return cmd
}

func addEngineFlags(cmd *cobra.Command, settings *engineSettings) {
	config := &settings.docker
	cmd.Flags().StringVar(&config.Path, "config", "/etc/docker/daemon.json", "Docker's configuration")
	cmd.Flags().StringVar(&config.PIDFile, "pidfile", "/run/docker.pid", "file with the number of Docker's process")
	cmd.Flags().StringVar(&config.Socket, "docker-socket", docker.DefaultSocket, "socket of Docker")
	config.DataDir = docker.DefaultDataDir // if the configuration does not say otherwise
	settings.podman.Path = podman.DefaultSettings
}
