package lxc

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// Stop asks a container to shut down, and kills it when grace is over; negative: LXC's own default of a
// minute.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	ctr, err := e.running(ctx, id)
	if errors.Is(err, engine.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	if grace < 0 {
		grace = time.Minute
	}
	cmd := exec.CommandContext(ctx, "lxc-stop", "-P", e.config.Path, "-n", ctr.Definition.Name, "-t",
		strconv.Itoa(int(grace.Round(time.Second).Seconds())))
	if grace < time.Second {
		cmd.Args = append(cmd.Args, "-k")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("lxc-stop of container %s: %w: %s", ctr.Definition.Name, err, lastLine(string(out)))
	}
	return nil
}

// Remove deletes a stopped container; with force, also a running one.
func (e *Engine) Remove(ctx context.Context, id string, force bool) error {
	ctr, err := e.Inspect(ctx, id)
	if err != nil {
		return err
	}
	if ctr.State != engine.Exited && !force {
		return fmt.Errorf("LXC container %s: %w: it is %s", ctr.Definition.Name, engine.ErrBusy, ctr.State)
	}
	defer e.lock(id)()
	if ctr.State != engine.Exited {
		if _, err := e.tool(ctx, "lxc-stop", ctr.Definition.Name, "-k"); err != nil {
			return err
		}
	}
	return e.remove(ctx, e.place(id, ctr.Definition.Name))
}

// Logs fails: a system container keeps its own logs.
func (e *Engine) Logs(context.Context, string, engine.LogOptions, func(engine.LogEntry) error) error {
	return fmt.Errorf("%w: an LXC container keeps its logs itself; look into it with godwit exec",
		errors.ErrUnsupported)
}

// Exec runs a process in a running container and returns its exit code.
func (e *Engine) Exec(ctx context.Context, id string, process engine.Exec) (int, error) {
	ctr, err := e.running(ctx, id)
	if err != nil {
		return 0, err
	}
	if process.User != "" || process.Dir != "" {
		return 0, fmt.Errorf("%w: LXC runs programs as root in the root directory", errors.ErrUnsupported)
	}
	args := []string{"-P", e.config.Path, "-n", ctr.Definition.Name, "--clear-env"}
	for _, variable := range process.Env {
		args = append(args, "--set-var", variable)
	}
	cmd := exec.CommandContext(ctx, "lxc-attach", append(append(args, "--"), process.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = process.Stdin, process.Stdout, process.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("lxc-attach to container %s: %w", ctr.Definition.Name, err)
	}
	return 0, nil
}

// Processes returns all processes of a container at this moment.
func (e *Engine) Processes(ctx context.Context, id string) ([]int, error) {
	var ctr engine.Container
	was, err := e.departureOf(id)
	if err == nil && was.First.Alive() { // LXC may hang, or report a leaving container as stopped
		ctr.Definition.Name, ctr.PID = id, was.First.PID
	} else if ctr, err = e.running(ctx, id); err != nil {
		return nil, err
	}
	group, err := groupOf(ctr)
	if err != nil {
		return nil, err
	}
	return group.Procs()
}

// CPUTime returns how much processor time a container has used.
func (e *Engine) CPUTime(ctx context.Context, id string) (time.Duration, error) {
	ctr, err := e.running(ctx, id)
	if err != nil {
		return 0, err
	}
	group, err := groupOf(ctr)
	if err != nil {
		return 0, err
	}
	used, err := group.CPUTime()
	if errors.Is(err, kernel.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return used, err
}

// Throttle fails: only its configuration and its users know a container's previous limit.
func (e *Engine) Throttle(_ context.Context, _ string, cpus float64) error {
	if cpus == 0 {
		return nil
	}
	return fmt.Errorf("throttle an LXC container: %w", errors.ErrUnsupported)
}

// Trees returns the directories that make up the container's own state.
func (e *Engine) Trees(ctx context.Context, id string) ([]files.Tree, error) {
	ctr, err := e.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	root, err := e.rootOf(ctr)
	if err != nil {
		return nil, err
	}
	return []files.Tree{{Kind: files.Writable, Path: root}}, nil
}

// VolumePath fails: LXC containers have no volumes.
func (e *Engine) VolumePath(volume engine.Volume) (string, error) {
	return "", fmt.Errorf("%s: %w: LXC has no volumes", volume, errors.ErrUnsupported)
}

// Volumes returns none.
func (e *Engine) Volumes(context.Context) ([]engine.StoredVolume, error) { return nil, nil }

// RemoveVolume fails: there is none.
func (e *Engine) RemoveVolume(_ context.Context, name string) error {
	return fmt.Errorf("LXC volume %.80q: %w", name, engine.ErrNoVolume)
}
