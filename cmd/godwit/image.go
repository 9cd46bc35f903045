package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/units"
)

func newImageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Manage the images of this node"}
	cmd.AddCommand(newImageLoadCommand(), newImagePullCommand(), newImageListCommand(),
		newImageRemoveCommand())
	return cmd
}

func newImageLoadCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "load FILE",
		Short:   "Load an image from a docker archive or an OCI layout (tar); - is stdin",
		Example: "  docker save redis | godwit image load -\n  godwit image load redis.tar",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := cmd.InOrStdin()
			if args[0] != "-" {
				opened, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("image archive: %w", err)
				}
				defer opened.Close()
				file = opened
			}
			return withAgent(cmd, func(agent api.AgentClient) error { return loadImage(cmd, agent, file) })
		},
	}
}

func loadImage(cmd *cobra.Command, agent api.AgentClient, file io.Reader) error {
	stream, err := agent.LoadImage(cmd.Context())
	if err != nil {
		return err
	}
	if err := sendChunks(stream, file); err != nil {
		return err
	}
	return showImageProgress(cmd, stream)
}

// sendChunks sends a file; when the agent ends the call first, the reason comes with the next Recv.
func sendChunks(stream api.Agent_LoadImageClient, file io.Reader) error {
	buffer := make([]byte, 256<<10)
	for {
		n, err := file.Read(buffer)
		if n > 0 {
			if sendErr := stream.Send(&api.Chunk{Data: buffer[:n]}); sendErr != nil {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return stream.CloseSend()
		}
		if err != nil {
			return fmt.Errorf("read the image archive: %w", err)
		}
	}
}

type imageProgressStream interface {
	Recv() (*api.ImageProgress, error)
}

func showImageProgress(cmd *cobra.Command, stream imageProgressStream) error {
	for {
		progress, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if progress.Text != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), progress.Text)
		}
		if image := progress.Image; image != nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", image.Id, strings.Join(image.Names, " "))
		}
	}
}

func newImagePullCommand() *cobra.Command {
	request := &api.PullImageRequest{}
	cmd := &cobra.Command{
		Use:   "pull REFERENCE",
		Short: "Pull an image from a registry",
		Example: "  godwit image pull docker.io/library/redis:7\n  godwit image pull --plain-http " +
			"registry.example:5000/web",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Reference = args[0]
			return withAgent(cmd, func(agent api.AgentClient) error {
				stream, err := agent.PullImage(cmd.Context(), request)
				if err != nil {
					return err
				}
				return showImageProgress(cmd, stream)
			})
		},
	}
	cmd.Flags().BoolVar(&request.PlainHttp, "plain-http", false, "use unencrypted HTTP")
	return cmd
}

func newImageListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the images of this node",
		Example: "  godwit image ls --json",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				reply, err := agent.ListImages(cmd.Context(), &api.ListImagesRequest{})
				if err != nil {
					return err
				}
				return printImages(cmd.OutOrStdout(), reply.Images, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printImages(w io.Writer, images []*api.Image, asJSON bool) error {
	if asJSON {
		if images == nil {
			images = []*api.Image{}
		}
		return cli.PrintJSON(w, images)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tID\tSIZE\tLAYERS\tCREATED")
	for _, image := range images {
		names := image.Names
		if len(names) == 0 {
			names = []string{"-"}
		}
		created := time.Unix(image.CreatedUnixSeconds, 0).UTC().Format(time.DateOnly)
		for _, name := range names {
			fmt.Fprintf(table, "%s\t%.12s\t%s\t%d\t%s\n", name, strings.TrimPrefix(image.Id, "sha256:"),
				units.FormatBytes(image.SizeBytes), image.Layers, created)
		}
	}
	return table.Flush()
}

func newImageRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm IMAGE...",
		Short:   "Remove images that no container uses",
		Example: "  godwit image rm redis",
		Args:    cli.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				return eachContainer(cmd, args, func(reference string) error {
					_, err := agent.RemoveImage(cmd.Context(), &api.RemoveImageRequest{Reference: reference})
					return err
				})
			})
		},
	}
}
