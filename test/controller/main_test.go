// Package controller tests the controller with real agents in a lab: a node is drained while clients use its
// containers, and the controller is killed in the middle; migrations are cancelled.
package controller

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// client is a machine beside the nodes.
const client = "client"

// world is shared by all tests.
var world struct {
	lab     *lab.Lab
	program string // the controller, on the machine and in nodes
	redis   string // the archive of its image
}

func TestMain(m *testing.M) {
	lab.RunHidden()
	shared := labtest.World{Name: "controller", Size: 3, Build: build, Up: bringUp}
	os.Exit(shared.Run(m))
}

func build(ctx context.Context, directory string) (err error) {
	if err := labtest.GoBuild(ctx, filepath.Join(directory, "godwit"), labtest.Program); err != nil {
		return err
	}
	world.program = filepath.Join(directory, "godwit-controller")
	if err := labtest.GoBuild(ctx, world.program, labtest.Controller); err != nil {
		return err
	}
	world.redis, err = labimage.Build(ctx, "redis", filepath.Join(lab.StateDirectory, "images"))
	return err
}

func bringUp(ctx context.Context, up *lab.Lab, _ string) error {
	world.lab = up
	if err := up.Client(client, "a", lab.Link{}); err != nil {
		return err
	}
	if _, err := up.Exec(ctx, "b", "godwit", "image", "load", world.redis); err != nil {
		return fmt.Errorf("load an image: %w", err)
	}
	return nil
}
