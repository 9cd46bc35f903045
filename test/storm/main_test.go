// Package storm moves containers of several kinds at random among the nodes of a lab while every possible
// fault happens, and checks from outside, every 20 ms, whether any of them runs twice or nowhere. All
// random decisions come from one seed.
//
// STORM_SEED, STORM_MIGRATIONS, STORM_SECONDS and STORM_NODES configure a storm, STORM_JSON names the file
// for its figures, and STORM_RESUME continues the storm with these figures. docs/reliability.md describes
// the promises, and the storm's checks.
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

// world is shared by the tests of this package.
var world struct {
	lab       *lab.Lab
	directory string // on the machine, and on all nodes
	redis     string // the archive of its image
	nodes     []string
}

// agentArgs make the agents notice a broken link soon.
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
