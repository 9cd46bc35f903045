package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/engine/moving"
)

// Gone kills what is left of a container's shim, unless the shim has processes. If dockerd is killed while its runtime waits
// for the state of a container that arrives, the shim lives on, and containerd 1.6 takes it for one that has a container.
func (a *adapter) Gone(own string) error {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range commands {
		command, err := os.ReadFile(path)
		if err != nil || !isShimOf(string(command), own) {
			continue // it has ended, or has nothing to do with the container
		}
		if err := killShim(path, own); err != nil {
			return fmt.Errorf("end the shim of container %.12s: %w", own, err)
		}
	}
	return nil
}

// killShim kills the process that has this command line, if it still is the shim.
func killShim(path, own string) error {
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
	if err != nil {
		return err
	}
	shim, err := moving.Identify(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if command, err := os.ReadFile(path); err != nil || !isShimOf(string(command), own) {
		return nil // it has ended, and perhaps another process has its number
	}
	threads, err := filepath.Glob(filepath.Join(filepath.Dir(path), "task", "[0-9]*", "children"))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		if children, err := os.ReadFile(thread); err != nil || len(children) > 0 {
			return nil
		}
	}
	return shim.Kill()
}

// isShimOf tells whether a command line, as in /proc/PID/cmdline, is that of the shim of one of Docker's containers.
func isShimOf(command, own string) bool {
	args := strings.Split(command, "\x00")
	follows := func(name, value string) bool {
		i := slices.Index(args, name)
		return i >= 0 && i+1 < len(args) && args[i+1] == value
	}
	return strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") && own != "" &&
		follows("-namespace", "moby") && follows("-id", own)
}
