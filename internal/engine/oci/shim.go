package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// ShimProcess is what there is of a container that a shim of containerd runs. state is the pattern of the name of the file in which
// runc keeps what it knows.
func ShimProcess(found Found, state string) (Process, error) {
	process, err := kernel.ReadProcess(found.Container.PID)
	if err != nil {
		return Process{}, err
	}
	states, err := filepath.Glob(state)
	if err != nil || len(states) == 0 {
		return Process{}, fmt.Errorf("find what runc knows of container %s: %s: %w", found.name(), state, errors.Join(err, os.ErrNotExist))
	}
	// A shim's working directory is the bundle (containerd, runtime/v2/README.md).
	return Process{Reader: process.Parent, Bundle: fmt.Sprintf("/proc/%d/cwd", process.Parent), State: states[0]}, nil
}

// ForgetShim removes what a shim that was killed has left in these directories: the bundle of a container and what runc, which ends with
// it, kept of that. Mounts stand in the way of who tidies up after it, and a bundle in that of every later container of the same id.
// Nothing may run there.
func ForgetShim(bundle, state string) error {
	for _, directory := range []string{bundle, state} {
		err := mounts.UnmountBelow(directory)
		if err == nil {
			err = files.RemoveTree(directory)
		}
		if err != nil {
			return fmt.Errorf("remove what a shim has left: %w", err)
		}
	}
	return nil
}
