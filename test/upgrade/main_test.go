// Package upgrade has the previous release and this tree work together: containers move between them
// both ways while a cluster is upgraded node by node and rolled back, and each takes over the journals
// of the other. RELEASES says which release, and its binary is built from the repository's history.
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
	"github.com/godwit/godwit/internal/lab/labtest"
)

const image = "localhost/upgrade:latest"

// world is what all tests share.
var world struct {
	lab      *lab.Lab
	programs map[version]string // the binaries, on the machine
}

// version is what runs on a node.
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
	count := filepath.Join(directory, "count")
	if err := labtest.GoBuild(ctx, count, "./count"); err != nil {
		return err
	}
	return labtest.WriteImage(filepath.Join(directory, "image.tar"), image, count)
}

func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab = up
	for _, node := range labtest.Nodes() {
		archive := filepath.Join(directory, "image.tar")
		if _, err := up.Exec(ctx, node, "godwit", "image", "load", archive); err != nil {
			return fmt.Errorf("load the image: %w", err)
		}
	}
	return nil
}
