package zdtm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/labtest"
)

const image = "localhost/zdtm:latest"

// suiteVariable names the directory that scripts/fetch-zdtm.sh has made.
const suiteVariable = "ZDTM_SUITE"

// world is shared by all tests.
var world struct {
	lab   *lab.Lab
	suite string
}

// TestMain makes no lab without the suite: then only the tests that need none run.
func TestMain(m *testing.M) {
	lab.RunHidden()
	if world.suite = os.Getenv(suiteVariable); world.suite == "" {
		os.Exit(m.Run())
	}
	shared := labtest.World{Name: "zdtm", Build: build, Up: bringUp}
	os.Exit(shared.Run(m))
}

func build(ctx context.Context, directory string) error {
	if err := labtest.GoBuild(ctx, filepath.Join(directory, "godwit"), labtest.Program); err != nil {
		return err
	}
	first := filepath.Join(directory, "init")
	compile := exec.CommandContext(ctx, "gcc", "-O1", "-std=gnu17", "-Wall", "-Wextra", "-static", "-o",
		first, "init/init.c")
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("compile init: %w: %s", err, out)
	}
	return writeImage(directory, filepath.Join(directory, "image.tar"))
}

// writeImage makes an archive of an image with the suite's root file system and init.
func writeImage(directory, path string) error {
	layer := filepath.Join(directory, "layer.tar")
	pack := exec.Command("tar", "--create", "--file", layer, "--owner", "0", "--group", "0",
		"--directory", filepath.Join(world.suite, "root"), ".", "--directory", directory, "init")
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("pack the suite (%s says where it is): %w: %s", suiteVariable, err, out)
	}
	content, err := tarball.LayerFromFile(layer)
	if err != nil {
		return err
	}
	built, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Env: []string{"PATH=/bin"}},
	})
	if err == nil {
		built, err = mutate.AppendLayers(built, content)
	}
	tag, badTag := name.NewTag(image)
	if err := errors.Join(err, badTag); err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, built)
}

func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab = up
	for _, node := range labtest.Nodes() {
		if _, err := up.Exec(ctx, node, "godwit", "image", "load",
			filepath.Join(directory, "image.tar")); err != nil {
			return fmt.Errorf("load the image: %w", err)
		}
	}
	return nil
}
