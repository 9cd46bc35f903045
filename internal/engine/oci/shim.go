package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/kernel"
)

// ShimProcess returns the process data of a container that runs under a containerd shim. state is the
// pattern of the name of runc's state file.
func ShimProcess(found Container, state string) (Process, error) {
	process, err := kernel.ReadProcess(found.Container.PID)
	if err != nil {
		return Process{}, err
	}
	states, err := filepath.Glob(state)
	if err != nil || len(states) == 0 {
		return Process{}, fmt.Errorf("read runc's state of container %s: %s: %w", found.name(), state,
			errors.Join(err, os.ErrNotExist))
	}
	// A shim's working directory is the bundle (containerd, runtime/v2/README.md).
	return Process{Reader: process.Parent, Bundle: fmt.Sprintf("/proc/%d/cwd", process.Parent),
		State: states[0]}, nil
}
