package moves

import (
	"context"
	"fmt"
	"strings"

	"github.com/godwit/godwit/internal/bench/testbed"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

// memoryImage is the name of the image with this program, for workloads that consist only of memory.
const memoryImage = "bench-memory"

// BuildImage returns the archive of a workload's image.
func BuildImage(ctx context.Context, s *testbed.Suite, w Workload) (string, error) {
	if w.Memory == nil {
		return labimage.Build(ctx, w.Image, s.Config.ImageCache)
	}
	if s.MemoryImage != "" {
		return s.MemoryImage, nil
	}
	var err error
	s.MemoryImage, err = s.ProgramImage(memoryImage)
	return s.MemoryImage, err
}

// LoadImage loads an image into Docker or Podman on a node, and returns its name there.
func LoadImage(ctx context.Context, b *testbed.Bed, node, engine, archive string) (string, error) {
	out, err := b.Exec(ctx, node, engine, "load", "--quiet", "--input", archive)
	if err != nil {
		return "", err
	}
	_, name, found := strings.Cut(strings.TrimSpace(out), ": ") // Loaded image: NAME
	if !found {
		return "", fmt.Errorf("%s load says %.200q", engine, out)
	}
	return name, nil
}
