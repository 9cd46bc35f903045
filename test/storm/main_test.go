// Package storm moves containers of several kinds at random among the nodes of a lab while everything goes
// wrong that can, and looks from outside, every 20 ms, whether any of them runs twice or nowhere. All that is
// random comes from one seed.
//
// STORM_SEED, STORM_MIGRATIONS, STORM_SECONDS and STORM_NODES say what a storm is like, STORM_JSON
// where its figures go, and STORM_RESUME that it goes on with the storm whose figures are there.
// docs/reliability.md tells what is promised, and what the storm looks at.
package storm

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/labtest"
)

const image = "localhost/storm:latest"

// world is what the tests of this package share.
var world struct {
	lab       *lab.Lab
	directory string // on the machine, and on all nodes
	redis     string // the archive of its image
	nodes     []string
}

// agentArgs have the agents notice soon that a link is broken.
var agentArgs = []string{"--peer-timeout", "5s"}

func TestMain(m *testing.M) {
	lab.RunHidden()
	world.nodes = []string{"a", "b", "c", "d", "e"}[:nodesAsked()]
	shared := labtest.World{Name: "storm", Size: len(world.nodes), AgentArgs: agentArgs, Build: build,
		Up: bringUp}
	os.Exit(shared.Run(m))
}

// build makes the program and the images.
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
	redis, err := labimage.Build(ctx, "redis", filepath.Join(lab.StateDirectory, "images"))
	if err != nil {
		return err
	}
	world.redis = redis
	return labtest.WriteImage(filepath.Join(directory, "image.tar"), image, beat, "tmp", "files")
}
