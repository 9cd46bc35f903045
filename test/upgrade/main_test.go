// Package upgrade tests the previous release together with this tree: containers move between them both
// ways while a cluster is upgraded node by node and rolled back, and each takes over the journals of the
// other. RELEASES names the release, and its binary is built from the repository's history.
package upgrade

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/labtest"
)

const image = "localhost/upgrade:latest"

// client is a machine beside the nodes.
const client = "client"

// world is shared by all tests.
var world struct {
	lab      *lab.Lab
	redis    string             // the archive of its image
	programs map[version]string // the binaries, on the machine
}

// version is the program of a node.
type version string

const (
	previous version = "the previous release"
	present  version = "this tree"
)

func TestMain(m *testing.M) {
	lab.RunHidden()
	shared := labtest.World{Name: "upgrade", Build: build, Up: bringUp}
	os.Exit(shared.Run(m))
}

// build makes both programs and the image.
func build(ctx context.Context, directory string) error {
	now := filepath.Join(directory, "godwit")
	if err := labtest.GoBuild(ctx, now, labtest.Program); err != nil {
		return err
	}
	script := exec.CommandContext(ctx, "../../scripts/release-binary.sh")
	script.Stderr = os.Stderr
	out, err := script.Output()
	if err != nil {
		return fmt.Errorf("build the previous release: %w", err)
	}
	world.programs = map[version]string{present: now, previous: strings.TrimSpace(string(out))}
	if world.redis, err = labimage.Build(ctx, "redis",
		filepath.Join(lab.StateDirectory, "images")); err != nil {
		return err
	}
	count := filepath.Join(directory, "count")
	if err := labtest.GoBuild(ctx, count, "./count"); err != nil {
		return err
	}
	return labtest.WriteImage(filepath.Join(directory, "image.tar"), image, count)
}

func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab = up
	if err := up.Client(client, "a", lab.Link{}); err != nil {
		return err
	}
	archive := filepath.Join(directory, "image.tar")
	for _, node := range labtest.Nodes() {
		if err := up.Engines().StartDocker(ctx, node); err != nil {
			return err
		}
		for _, load := range [][]string{
			{"godwit", "image", "load", archive}, {"godwit", "image", "load", world.redis},
			{"docker", "load", "--input", archive},
		} {
			if _, err := up.Exec(ctx, node, load...); err != nil {
				return fmt.Errorf("load an image: %w", err)
			}
		}
	}
	return nil
}
