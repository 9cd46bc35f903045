// Package storm moves containers of several kinds at random among the nodes of a lab while everything goes
// wrong that can, and looks from outside, every 20 ms, whether any of them runs twice or nowhere. All that is
// random comes from one seed.
//
// STORM_SEED, STORM_MIGRATIONS, STORM_SECONDS and STORM_NODES say what a storm is like, STORM_JSON where its
// figures go. docs/reliability.md tells what is promised, and what the storm looks at.
package storm

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/labtest"
)

const image = "localhost/storm:latest"

// world is what the tests of this package share.
var world struct {
	lab       *lab.Lab
	directory string // on the machine, and on all nodes
	nodes     []string
}

// agentArgs have the agents notice soon that a link is broken.
var agentArgs = []string{"--peer-timeout", "5s"}

func TestMain(m *testing.M) {
	lab.RunHidden()
	world.nodes = []string{"a", "b", "c", "d", "e"}[:nodesAsked()]
	shared := labtest.World{Name: "storm", Size: len(world.nodes), AgentArgs: agentArgs, Build: build, Up: bringUp}
	os.Exit(shared.Run(m))
}

// build makes the program and the image.
func build(ctx context.Context, directory string) error {
	world.directory = directory
	if err := os.Chmod(directory, 0o755); err != nil {
		return err
	}
	if err := labtest.GoBuild(ctx, filepath.Join(directory, "godwit"), labtest.Program); err != nil {
		return err
	}
	beat := filepath.Join(directory, "beat")
	if err := labtest.GoBuild(ctx, beat, "./beat"); err != nil {
		return err
	}
	return writeImage(beat, filepath.Join(directory, "image.tar"))
}

// writeImage makes an archive of an image that has one program, /beat, and an empty directory for its files.
func writeImage(program, path string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var files bytes.Buffer
	archive := tar.NewWriter(&files)
	for _, header := range []*tar.Header{
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "files/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "beat", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))},
	} {
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
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
	built, err = mutate.Config(built, v1.Config{Cmd: []string{"/beat"}})
	if err != nil {
		return err
	}
	tag, err := name.NewTag(image)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, built)
}

// bringUp gives each node a Docker and the images.
func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab = up
	redis, err := labimage.Build(ctx, "redis", filepath.Join(lab.StateDirectory, "images"))
	if err != nil {
		return err
	}
	if err := up.Client(client, world.nodes[0], lab.Link{}); err != nil {
		return err
	}
	ours := filepath.Join(directory, "image.tar")
	for _, node := range world.nodes {
		if err := up.StartDocker(ctx, node); err != nil {
			return err
		}
		for _, command := range [][]string{
			{"docker", "load", "--input", ours}, {"godwit", "image", "load", ours}, {"godwit", "image", "load", redis},
		} {
			if _, err := up.Exec(ctx, node, command...); err != nil {
				return fmt.Errorf("load an image: %w", err)
			}
		}
	}
	return nil
}
