package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/containerd"
	"github.com/godwit/godwit/internal/engine/docker"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/podman"
	"github.com/godwit/godwit/internal/engine/shim"
)

// newEngineCommand returns the group of commands for a node's container engines.
func newEngineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Set up container engines on this node to receive containers",
		Long: `Containers of Docker, Podman and containerd can leave a node without any setup. They arrive
through godwit-runc, an OCI runtime that acts as runc except for arriving containers. On each node that
should receive an engine's containers, the engine has to know godwit-runc. Setting it up restarts no engine.`,
	}
	cmd.AddCommand(newEngineSetupCommand(), newEngineRemoveCommand())
	return cmd
}

// runtimeLink returns the path of this program and of godwit-runc, a link to this program in the same
// directory.
func runtimeLink() (program, link string, err error) {
	program, err = os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return "", "", fmt.Errorf("find this program: %w", err)
	}
	return program, filepath.Join(filepath.Dir(program), shim.Program), nil
}

// runtimes registers a runtime with one engine.
type runtimes interface {
	AddRuntime(path string) error
	// Unneeded returns the reason why the runtime cannot be removed.
	Unneeded(ctx context.Context) error
	RemoveRuntime(ctx context.Context) error
}

// engineSettings is how each engine that can be set up is configured.
type engineSettings struct {
	docker     docker.DaemonConfig
	podman     podman.Settings
	containerd containerd.Settings
}

// of returns one engine's settings and its display name.
func (s engineSettings) of(name string) (settings runtimes, title string) {
	switch name {
	case podman.Name:
		return s.podman, "Podman"
	case containerd.Name:
		return s.containerd, "containerd"
	}
	return s.docker, "Docker"
}

// others reports whether another engine still needs godwit-runc.
func (s engineSettings) others(ctx context.Context, name string) bool {
	if _, err := os.Lstat(s.podman.Path); name != podman.Name && err == nil {
		return true
	}
	if known, err := s.docker.Knows(); name != docker.Name && (known || err != nil) {
		return true
	}
	return name != containerd.Name && s.containerd.Needs(ctx)
}

// tell prints what an engine knows now. An engine without a daemon knows the runtime at once, and
// containerd is given the runtime with each container.
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
		fmt.Fprintf(out, "%s does not run here; when it is started it will know runtime %s: %s\n", title,
			oci.Runtime, link)
	}
	return nil
}

func engineNames() []string { return []string{docker.Name, podman.Name, containerd.Name} }

func newEngineSetupCommand() *cobra.Command {
	var settings engineSettings
	var routed routedSettings
	var firewall firewallSettings
	cmd := &cobra.Command{
		Use:   "setup docker|podman|containerd",
		Short: "Register godwit-runc with an engine",
		Long: `Setup creates a link named godwit-runc beside this program and adds it to the engine's
runtimes. For Docker it edits Docker's configuration file and makes Docker reload it; for Podman it adds a
file of its own; containerd needs only the link. The default runtime and existing containers do not change.
LXC needs no setup.

With --network, setup also creates a bridge network for the engine (for containerd, a CNI plugin list for "ctr
run --cni"). The agent must be running. Use the same name and subnet on all nodes. Each node's engine gives
addresses from its own part of the subnet, and the agents route to all parts. So no two containers have the
same address, and each of them can move to any node.

With --firewall (also without an engine), the agent may keep rules in the filters of Docker and ufw from now
on, in their chains for rules of others (DOCKER-USER, ufw-user-forward), that let forwarded packets of
containers pass: from and to the pool. The agent makes them again after a boot, and when Docker or ufw starts
or reloads.
"godwit engine remove --firewall" takes the permission back, and the agent removes them.`,
		Example: "  godwit engine setup docker\n  godwit engine setup docker --network birds\n  godwit " +
			"engine setup podman --network birds\n" +
			"  godwit engine setup --firewall",
		Args:      engineOrFirewall(&firewall),
		ValidArgs: engineNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := firewall.allow(cmd); err != nil || len(args) == 0 {
				return err
			}
			program, link, err := runtimeLink()
			if err != nil {
				return err
			}
			if err := checkpoint.Link(program, link); err != nil {
				return err
			}
			engine, title := settings.of(args[0])
			if err := engine.AddRuntime(link); err != nil {
				return err
			}
			if err := settings.tell(cmd.OutOrStdout(), args[0], title, link); err != nil {
				return err
			}
			return routed.make(cmd.Context(), settings, args[0], cmd.OutOrStdout())
		},
	}
	addEngineFlags(cmd, &settings)
	routed.add(cmd)
	firewall.add(cmd, "let the agent keep rules for containers' packets in Docker's and ufw's filters")
	return cmd
}

func newEngineRemoveCommand() *cobra.Command {
	var settings engineSettings
	var firewall firewallSettings
	cmd := &cobra.Command{
		Use:   "remove docker|podman|containerd",
		Short: "Undo setup",
		Long: `Remove takes godwit-runc out of an engine's configuration, and removes the networks that
setup has made. It refuses while a container exists that arrived through godwit-runc, because the engine
needs godwit-runc to start that container.

With --firewall (also without an engine), it takes back what setup --firewall has allowed.`,
		Example:   "  godwit engine remove docker\n  godwit engine remove --firewall",
		Args:      engineOrFirewall(&firewall),
		ValidArgs: engineNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := firewall.forbid(cmd); err != nil || len(args) == 0 {
				return err
			}
			_, link, err := runtimeLink()
			if err != nil {
				return err
			}
			engine, title := settings.of(args[0])
			if err := engine.Unneeded(cmd.Context()); err != nil { // before anything is removed
				return err
			}
			if err := settings.removeRouted(cmd.Context(), args[0]); err != nil {
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
			fmt.Fprintf(cmd.OutOrStdout(), "%s no longer knows runtime %s\n", title, oci.Runtime)
			return nil
		},
	}
	addEngineFlags(cmd, &settings)
	firewall.add(cmd, "have the agent remove its rules from Docker's and ufw's filters")
	return cmd
}

func addEngineFlags(cmd *cobra.Command, settings *engineSettings) {
	config := &settings.docker
	cmd.Flags().StringVar(&config.Path, "config", "/etc/docker/daemon.json", "Docker's configuration file")
	cmd.Flags().StringVar(&config.PIDFile, "pidfile", "/run/docker.pid", "file with Docker's process ID")
	cmd.Flags().StringVar(&config.Socket, "docker-socket", docker.DefaultSocket, "Docker's socket")
	config.DataDir = docker.DefaultDataDir // if the configuration does not say otherwise
	settings.podman.Path = podman.DefaultSettings
}
