package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

// imageCache holds lab images outside of every lab, so that all labs share them.
const imageCache = "/var/lib/godwit-lab/images"

// newImageCommand returns the command that makes images for the lab.
func newImageCommand() *cobra.Command {
	var output, cache string
	cmd := &cobra.Command{
		Use:   "image NAME",
		Short: "Make a small image from Debian packages: " + strings.Join(labimage.Names(), ", "),
		Long: `Make a small image from Debian packages and print its path. The image is made once and then
kept. This needs apt-get and dpkg-deb (Debian, Ubuntu). Load it on a node with "godwit image load"; its
name there is localhost/NAME, or NAME for short.`,
		Example: "  godwit-lab exec a -- godwit image load $(godwit-lab image redis)\n" +
			"  godwit-lab image nginx -o nginx.tar",
		Args:      cli.Arguments(cobra.ExactArgs(1)),
		ValidArgs: labimage.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(labimage.Names(), args[0]) {
				return cli.Usage(fmt.Errorf("unknown lab image %q; available: %s", args[0],
					strings.Join(labimage.Names(), ", ")))
			}
			path, err := labimage.Build(cmd.Context(), args[0], cache)
			if err != nil {
				return err
			}
			if output == "" {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
				return err
			}
			return copyImage(cmd, path, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "write the image to this file; - is stdout")
	cmd.Flags().StringVar(&cache, "cache", imageCache, "directory in which images are kept")
	return cmd
}

func copyImage(cmd *cobra.Command, from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("lab image: %w", err)
	}
	defer source.Close()
	if to == "-" {
		_, err = io.Copy(cmd.OutOrStdout(), source)
		return err
	}
	// Write to a temporary file in the same directory first, so that an interruption leaves no partial image.
	target, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".new-*")
	if err != nil {
		return fmt.Errorf("lab image: %w", err)
	}
	defer os.Remove(target.Name())
	defer target.Close()
	if _, err := io.Copy(target, source); err != nil {
		return fmt.Errorf("lab image: write %s: %w", to, err)
	}
	if err := target.Chmod(0o644); err != nil {
		return fmt.Errorf("lab image: write %s: %w", to, err)
	}
	if err := os.Rename(target.Name(), to); err != nil {
		return fmt.Errorf("lab image: %w", err)
	}
	return nil
}
