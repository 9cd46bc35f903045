package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// shimPatience is how long to wait for the shim of a removed container to end by itself.
const shimPatience = 5 * time.Second

// EndLeft ends the shim of a container that never ran and was removed. If dockerd is killed while its
// runtime waits for the state of an arriving container, the shim lives on, and containerd 1.6 treats it as
// the shim of a live container.
func (a *adapter) EndLeft(ctx context.Context, engineID string) error {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range commands {
		if err := endShim(ctx, path, engineID); err != nil {
			return fmt.Errorf("end the shim of container %.12s: %w", engineID, err)
		}
	}
	return nil
}

// endShim ends the process with this command line if it is the shim and has no child processes.
func endShim(ctx context.Context, path, engineID string) error {
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
	if err != nil {
		return err
	}
	shim, err := checkpoint.Identify(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	command, err := os.ReadFile(path)
	if err != nil || !isShimOf(string(command), engineID) {
		return nil // it has ended, or belongs to something else
	}
	ctx, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for shim.Alive() {
		select {
		case <-pause.C:
		case <-ctx.Done():
			if !childless(filepath.Dir(path)) {
				return nil
			}
			return shim.Kill()
		}
	}
	return nil
}

// childless reports whether a process certainly has no children; process is its directory in /proc.
func childless(process string) bool {
	threads, err := filepath.Glob(filepath.Join(process, "task", "[0-9]*", "children"))
	for _, thread := range threads {
		if children, err := os.ReadFile(thread); err != nil || len(children) > 0 {
			return false
		}
	}
	return err == nil && len(threads) > 0
}

// isShimOf reports whether a command line, as in /proc/PID/cmdline, is that of the shim of a Docker
// container. The processes with which containerd starts a shim, and cleans up after it, have the same name.
func isShimOf(command, engineID string) bool {
	args := strings.Split(command, "\x00")
	follows := func(name, value string) bool {
		i := slices.Index(args, name)
		return i >= 0 && i+1 < len(args) && args[i+1] == value
	}
	return engineID != "" && strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") &&
		follows("-namespace", "moby") && follows("-id", engineID) &&
		!slices.Contains(args, "start") && !slices.Contains(args, "delete")
}
