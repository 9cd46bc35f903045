package lxc

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// life stops and removes containers, and runs processes in them.
type life struct {
	config     Config
	identities *identities
	tools      *tools
	catalog    *catalog
	remover    *remover
}

// Stop asks a container to shut down, and kills it when grace is over; negative: LXC's own default of a
// minute.
func (l *life) Stop(ctx context.Context, id string, grace time.Duration) error {
	ctr, err := l.catalog.running(ctx, id)
	if errors.Is(err, engine.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	if grace < 0 {
		grace = time.Minute
	}
	cmd := exec.CommandContext(ctx, "lxc-stop", "-P", l.config.Path, "-n", ctr.Definition.Name, "-t",
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
func (l *life) Remove(ctx context.Context, id string, force bool) error {
	ctr, err := l.catalog.Inspect(ctx, id)
	if err != nil {
		return err
	}
	if ctr.State != engine.Exited && !force {
		return fmt.Errorf("LXC container %s: %w: it is %s", ctr.Definition.Name, engine.ErrBusy, ctr.State)
	}
	defer l.catalog.lock(id)()
	if ctr.State != engine.Exited {
		if _, err := l.tools.tool(ctx, "lxc-stop", ctr.Definition.Name, "-k"); err != nil {
			return err
		}
	}
	return l.remover.remove(ctx, l.identities.place(id, ctr.Definition.Name))
}

// Logs fails: a system container keeps its own logs.
func (l *life) Logs(context.Context, string, engine.LogOptions, func(engine.LogEntry) error) error {
	return fmt.Errorf("%w: an LXC container keeps its logs itself; look into it with godwit exec",
		errors.ErrUnsupported)
}

// Exec runs a process in a running container and returns its exit code.
func (l *life) Exec(ctx context.Context, id string, process engine.Exec) (int, error) {
	ctr, err := l.catalog.running(ctx, id)
	if err != nil {
		return 0, err
	}
	if process.User != "" || process.Dir != "" {
		return 0, fmt.Errorf("%w: LXC runs programs as root in the root directory", errors.ErrUnsupported)
	}
	args := []string{"-P", l.config.Path, "-n", ctr.Definition.Name, "--clear-env"}
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
func (l *life) Processes(ctx context.Context, id string) ([]int, error) {
	var ctr engine.Container
	was, err := l.identities.departureOf(id)
	if err == nil && was.First.Alive() { // LXC may hang, or report a leaving container as stopped
		ctr.Definition.Name, ctr.PID = id, was.First.PID
	} else if ctr, err = l.catalog.running(ctx, id); err != nil {
		return nil, err
	}
	group, err := groupOf(ctr)
	if err != nil {
		return nil, err
	}
	return group.Procs()
}

// CPUTime returns how much processor time a container has used.
func (l *life) CPUTime(ctx context.Context, id string) (time.Duration, error) {
	ctr, err := l.catalog.running(ctx, id)
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
func (l *life) Throttle(_ context.Context, _ string, cpus float64) error {
	if cpus == 0 {
		return nil
	}
	return fmt.Errorf("throttle an LXC container: %w", errors.ErrUnsupported)
}
