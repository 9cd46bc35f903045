package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// world is shared by all tests: the final check finds containers that a test leaves behind.
var world struct {
	lab       *lab.Lab
	directory string // of programs and images, on the machine
	before    map[string]view
}

func TestMain(m *testing.M) {
	lab.RunHidden()
	shared := labtest.World{Name: "e2e", Build: buildAll, Up: bringUp,
		Left: func() []string { return leftInLab(world.before) }}
	os.Exit(shared.Run(m))
}

func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab, world.directory = up, directory
	if err := world.lab.Client("client", "a", lab.Link{}); err != nil {
		return err
	}
	for _, node := range nodes() {
		if err := loadImage(ctx, node, inWorld("image.tar")); err != nil {
			return err
		}
	}
	if err := warmUp(ctx); err != nil {
		return err
	}
	var err error
	world.before, err = viewLab()
	return err
}

// warmUp moves a container there and back, so that permanent objects of the first container and migration
// exist before the tests.
func warmUp(ctx context.Context) error {
	for _, step := range [][]string{
		{"a", "run", "-d", "--name", "warm-up", image, "/bin/sleep", "1000"},
		{"a", "migrate", "warm-up", "b"},
		{"b", "migrate", "warm-up", "a"}, {"a", "rm", "--force", "warm-up"},
	} {
		if out, err := godwit(ctx, step[0], step[1:]...); err != nil || out.code != 0 {
			return fmt.Errorf("warm up: %v: %w, exit code %d: %s", step, err, out.code, out.stderr)
		}
	}
	return nil
}

func nodes() []string { return labtest.Nodes() }

// inWorld is the path of a file that the tests have made.
func inWorld(name string) string { return filepath.Join(world.directory, name) }

// loadImage loads an image through the command line. The lab's nodes have separate directories for
// temporary files, so the archive comes through standard input.
func loadImage(ctx context.Context, node, path string) error {
	archive, err := os.Open(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	cmd, err := world.lab.Command(ctx, node, "godwit", "image", "load", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load the image on %s: %w: %s", node, err, out)
	}
	return nil
}
