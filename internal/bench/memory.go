package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/godwit/godwit/internal/bench/testbed"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// memoryImage is the name of the image with this program, for workloads that consist only of memory.
const memoryImage = "bench-memory"

func (w containerWorkload) imageName() string {
	if w.memory != nil {
		return memoryImage
	}
	return w.image
}

// command returns the container's command; empty if the image has it.
func (w containerWorkload) command() []string {
	if w.memory != nil {
		return append([]string{labimage.ProgramPath}, w.memory.Args()...)
	}
	return w.args
}

// buildImage returns the archive of a workload's image.
func buildImage(ctx context.Context, s *testbed.Suite, w containerWorkload) (string, error) {
	if w.memory == nil {
		return labimage.Build(ctx, w.image, s.Config.ImageCache)
	}
	if s.MemoryImage != "" {
		return s.MemoryImage, nil
	}
	var err error
	s.MemoryImage, err = s.ProgramImage(memoryImage)
	return s.MemoryImage, err
}

// loadImage loads an image into Docker or Podman on a node, and returns its name there.
func loadImage(ctx context.Context, b *testbed.Bed, node, engine, archive string) (string, error) {
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

// judgeLog reads the workload's output; its last line is the result of its final check.
func judgeLog(log string) error {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	var result pages.Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil {
		return fmt.Errorf("the workload has not told what it found: %.500q: %w", log, err)
	}
	if result.Bad > 0 || result.Checked < result.Pages {
		return fmt.Errorf("the memory was not what it had to be: %.2000s", log)
	}
	return nil
}
