package services

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// clientMachine is where clients are. It is as near to either of the two nodes between which services move,
// and takes nothing of the link between them.
const clientMachine = "client"

// clientNode is the node next to it.
const clientNode = "c"

// world is what the tests share.
var world *lab.Lab

func TestMain(m *testing.M) {
	lab.RunHidden()
	shared := labtest.World{Name: "services", Size: 3, Build: build, Up: bringUp}
	os.Exit(shared.Run(m))
}

func build(ctx context.Context, directory string) error {
	// In its own module, with the dependencies that it has there.
	return run(ctx, "../..", []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w",
		"-o", filepath.Join(directory, "godwit"), "./cmd/godwit")
}

func bringUp(_ context.Context, up *lab.Lab, _ string) error {
	world = up
	return up.Client(clientMachine, clientNode, lab.Link{})
}
