package engines

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// patience bounds all waits.
const patience = 2 * time.Minute

// world is shared by all tests.
var world struct {
	lab       *lab.Lab
	directory string // of the program and the image, on the machine
}

func TestMain(m *testing.M) {
	lab.RunHidden()
	shared := labtest.World{Name: "engines", Build: build, Up: bringUp}
	os.Exit(shared.Run(m))
}

func build(ctx context.Context, directory string) error {
	return labtest.GoBuild(ctx, filepath.Join(directory, "godwit"), labtest.Program)
}

func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab, world.directory = up, directory
	for _, node := range nodes() {
		if _, err := up.Exec(ctx, node, "sh", "-c", "mkdir /tmp/host && echo kept >/tmp/host/x"); err != nil {
			return err
		}
		for _, bring := range []func(context.Context, string) error{bringUpDocker, bringUpPodman,
			bringUpContainerd, bringUpEmbedded, up.Engines().PrepareLXC} {
			if err := bring(ctx, node); err != nil {
				return err
			}
		}
	}
	return nil
}

func nodes() []string { return labtest.Nodes() }

// in runs a command in a node, and fails the test unless it succeeds.
func in(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := world.lab.Exec(t.Context(), node, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// tried runs a command in a node that may fail, and returns its output as an error.
func tried(t *testing.T, node string, args ...string) error {
	t.Helper()
	_, err := world.lab.Exec(t.Context(), node, args...)
	return err
}

// eventually polls a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if !labtest.Within(patience, condition) {
		t.Fatalf("not within %s: %s", patience, what)
	}
}

// modes returns the modes in which an engine's container moves; with -short the mode that contains parts of
// all others, there and back.
func modes() []string {
	if testing.Short() {
		return []string{"hybrid", "hybrid"}
	}
	return []string{"cold", "pre-copy", "post-copy", "hybrid"}
}
