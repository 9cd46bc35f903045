package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/units"
)

// parseVolume parses the value of run's -v. A source that begins with a slash is a host directory.
func parseVolume(text string) (*api.Volume, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != "ro" && parts[2] != "rw" {
		return nil, fmt.Errorf("--volume %q: want NAME:/PATH or /DIRECTORY:/PATH, with :ro for read-only",
			text)
	}
	volume := &api.Volume{Path: parts[1], ReadOnly: len(parts) == 3 && parts[2] == "ro"}
	if filepath.IsAbs(parts[0]) {
		volume.Kind, volume.Source = string(engine.Bind), filepath.Clean(parts[0])
		return volume, nil
	}
	if strings.ContainsRune(parts[0], '/') {
		return nil, fmt.Errorf("--volume %q: a host directory must begin with /", text)
	}
	volume.Name = parts[0]
	return volume, nil
}

// parseTmpfs parses the value of run's --tmpfs.
func parseTmpfs(text string) (*api.Volume, error) {
	path, option, has := strings.Cut(text, ":")
	volume := &api.Volume{Kind: string(engine.Tmpfs), Path: path}
	size, isSize := strings.CutPrefix(option, "size=")
	if has != isSize {
		return nil, fmt.Errorf("--tmpfs %q: want /PATH or /PATH:size=64m", text)
	}
	if isSize {
		bytes, err := units.ParseSize(size)
		if err == nil && bytes == 0 {
			err = fmt.Errorf("size %q: must be more than 0", size)
		}
		if err != nil {
			return nil, fmt.Errorf("--tmpfs %q: %w", text, err)
		}
		volume.SizeBytes = bytes
	}
	return volume, nil
}

// addVolumesFlag adds the flag for how a migration treats volumes.
func addVolumesFlag(cmd *cobra.Command, ways *[]string) {
	cmd.Flags().StringSliceVar(ways, "volumes", nil,
		"what happens to volumes: move, shared or skip, or VOLUME=WAY for single volumes (default: move)")
	complete := func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var offered []string
		for _, way := range migration.VolumeWayNames() {
			offered = append(offered, before+string(way))
			for _, volume := range volumesOfFirst(cmd, args) {
				offered = append(offered, before+volume+"="+string(way))
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	// RegisterFlagCompletionFunc fails only for a flag that does not exist, or that is registered twice.
	_ = cmd.RegisterFlagCompletionFunc("volumes", complete)
}

// volumesOfFirst returns the volumes of the container that the first argument names, if the agent answers.
func volumesOfFirst(cmd *cobra.Command, args []string) (keys []string) {
	if len(args) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	_ = withAgent(cmd, func(agent api.AgentClient) error {
		reply, err := agent.Inspect(ctx, &api.ContainerRequest{Reference: args[0]})
		if err != nil {
			return err
		}
		var c engine.Container
		if err := json.Unmarshal(reply.ContainerJson, &c); err != nil {
			return err
		}
		for _, v := range c.Definition.Volumes {
			keys = append(keys, v.Key())
		}
		return nil
	}) // completion shows no errors
	return keys
}

// printVolumes prints how a migration treats, or treated, a container's volumes.
func printVolumes(w io.Writer, volumes []migration.VolumeMoved) {
	for _, v := range volumes {
		what := v.Volume
		if v.Source != "" {
			what = v.Source
		}
		if v.Volume != v.Path || v.Source != "" {
			what += " at " + v.Path
		}
		fmt.Fprintf(w, "  volume          %s: ", what)
		switch v.Way {
		case migration.VolumeMove:
			fmt.Fprintf(w, "moves, %s in %d files and directories\n", units.FormatBytes(v.Bytes), v.Files)
		case migration.VolumeSkip:
			fmt.Fprintln(w, "skipped: the container gets what exists at the target")
		default:
			fmt.Fprintln(w, v.Way)
		}
		if v.Why != "" {
			fmt.Fprintf(w, "    %s\n", v.Why)
		}
	}
}

func newVolumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "Manage the named volumes of this node",
		Long: `Named volumes are created when a container first uses them, and stay when the container is
removed. They move with their container: see "godwit migrate --help".`,
		Example: "  godwit run -d -v data:/data busybox sleep 1000\n  godwit volume ls\n  godwit volume " +
			"inspect data\n  godwit volume rm data",
	}
	cmd.AddCommand(newVolumeLsCommand(), newVolumeInspectCommand(), newVolumeRmCommand())
	return cmd
}

func newVolumeLsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the volumes of this node, and the containers that use them",
		Example: "  godwit volume ls --json",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				volumes, err := listVolumes(cmd.Context(), agent)
				if err != nil {
					return err
				}
				if asJSON {
					return cli.PrintJSON(cmd.OutOrStdout(), volumes)
				}
				table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(table, "NAME\tCONTAINERS\tCHANGED")
				for _, v := range volumes {
					fmt.Fprintf(table, "%s\t%s\t%s ago\n", v.Name, strings.Join(v.Containers, ", "),
						units.FormatAge(time.Since(v.Changed)))
				}
				return table.Flush()
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func listVolumes(ctx context.Context, agent api.AgentClient) ([]engine.StoredVolume, error) {
	reply, err := agent.Volumes(ctx, &api.VolumesRequest{})
	if err != nil {
		return nil, err
	}
	volumes := make([]engine.StoredVolume, len(reply.VolumesJson))
	for i, document := range reply.VolumesJson {
		if err := json.Unmarshal(document, &volumes[i]); err != nil {
			return nil, fmt.Errorf("answer of the agent: %w", err)
		}
	}
	return volumes, nil
}

func volumeNames(ctx context.Context, agent api.AgentClient) ([]string, error) {
	volumes, err := listVolumes(ctx, agent)
	names := make([]string, len(volumes))
	for i, v := range volumes {
		names[i] = v.Name
	}
	return names, err
}

func newVolumeInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "inspect VOLUME",
		Short:   "Show details of a volume, as JSON",
		Example: "  godwit volume inspect data | jq .bytes",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.InspectVolume(cmd.Context(), &api.VolumeRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return printRawJSON(cmd.OutOrStdout(), reply.VolumeJson)
			})
		},
	}
}

func newVolumeRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm VOLUME...",
		Short:   "Remove volumes that no container uses, and their contents",
		Example: "  godwit volume rm data",
		Args:    cli.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				return eachContainer(cmd, args, func(name string) error {
					_, err := agent.RemoveVolume(cmd.Context(), &api.VolumeRequest{Name: name})
					return err
				})
			})
		},
	}
}
