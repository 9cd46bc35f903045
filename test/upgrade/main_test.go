// Package upgrade has the previous release and this tree work together: containers move between them
// both ways while a cluster is upgraded node by node and rolled back, and each takes over the journals
// of the other. RELEASES says which release, and its binary is built from the repository's history.
package upgrade

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

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
	return writeImage(count, filepath.Join(directory, "image.tar"))
}

// writeImage makes an archive of an image that has one program, /count.
func writeImage(program, path string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var files bytes.Buffer
	archive := tar.NewWriter(&files)
	header := &tar.Header{Name: "count", Mode: 0o755, Size: int64(len(content))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if _, err := archive.Write(content); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	built, err := mutate.AppendLayers(empty.Image, static.NewLayer(files.Bytes(), types.DockerUncompressedLayer))
	if err != nil {
		return err
	}
	built, err = mutate.Config(built, v1.Config{Cmd: []string{"/count"}})
	if err != nil {
		return err
	}
	tag, err := name.NewTag(image)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, built)
}

func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab = up
	for _, node := range labtest.Nodes() {
		archive, err := os.Open(filepath.Join(directory, "image.tar"))
		if err != nil {
			return err
		}
		defer archive.Close()
		cmd, err := up.Command(ctx, node, "godwit", "image", "load", "-")
		if err != nil {
			return err
		}
		cmd.Stdin = archive
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("load the image on %s: %w: %s", node, err, out)
		}
	}
	return nil
}
