package testbed

import (
	"fmt"
	"os"

	labimage "github.com/godwit/godwit/internal/lab/image"
)

// ProgramImage makes an image of godwit-lab, which is removed after the benchmark.
func (s *Suite) ProgramImage(name string, bulk ...int64) (string, error) {
	path := s.Config.Helper
	if path == "" {
		var err error
		if path, err = os.Executable(); err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
	}
	if err := os.MkdirAll(s.Config.ImageCache, 0o755); err != nil {
		return "", fmt.Errorf("image of this program: %w", err)
	}
	dir, err := os.MkdirTemp(s.Config.ImageCache, "bench-")
	if err != nil {
		return "", fmt.Errorf("image of this program: %w", err)
	}
	s.undo = append(s.undo, func() error { return os.RemoveAll(dir) })
	return labimage.OfProgram(name, path, dir, bulk...)
}
