package podman

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/kernel"
)

// Stop has Podman stop a container.
func (a *adapter) Stop(ctx context.Context, found oci.Container, grace time.Duration) error {
	args := []string{"stop"}
	if grace >= 0 {
		args = append(args, "--time="+strconv.Itoa(int(math.Ceil(grace.Seconds()))))
	}
	if _, err := podman(ctx, append(args, found.ID)...); err != nil {
		return fmt.Errorf("stop container %s of Podman: %w", native(found).Name, err)
	}
	return nil
}

// Remove has Podman remove a container.
func (a *adapter) Remove(ctx context.Context, engineID string, options oci.RemoveOptions) error {
	args := []string{"rm"}
	if options.Force {
		args = append(args, "--force", "--time=0")
	}
	if options.Volumes {
		args = append(args, "--volumes")
	}
	_, err := podman(ctx, append(args, engineID)...)
	if err != nil && !says(err, saysNoContainer, saysNoObject) {
		return err
	}
	return forgetStates(engineID)
}

// forgetStates removes what runtimes know of a container that is no more: Podman has none delete
// one whose conmon was killed.
func forgetStates(engineID string) error {
	if !idPattern.MatchString(engineID) {
		return nil
	}
	for _, runtime := range []string{"runc", "crun"} {
		if err := shim.Forget(filepath.Dir(stateFile(runtime, engineID))); err != nil {
			return fmt.Errorf("remove what %s knows of container %.12s: %w", runtime, engineID, err)
		}
	}
	return nil
}

// startPatience is for how long a container that is started can wait for its state. After 240 s
// Podman gives up and removes what its runtime has made (libpod, define.ContainerCreateTimeout);
// there must be time left for what comes after the last look at the clock.
const startPatience = 225 * time.Second

// Start has Podman start a container. It goes on if the caller gives up: half a start would have to
// be mended.
func (a *adapter) Start(ctx context.Context, engineID string) error {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "podman", "start", engineID)
	_, err := runBy(ctx, cmd, kernel.StartLasting) // conmon is its child and outlives it
	return err
}

// Logs shows what Podman has logged of a container.
func (a *adapter) Logs(
	ctx context.Context, f oci.Container, options engine.LogOptions, emit func(engine.LogEntry) error,
) error {
	args := []string{"logs", "--timestamps"}
	if options.Follow {
		args = append(args, "--follow")
	}
	if options.Tail >= 0 {
		args = append(args, "--tail="+strconv.Itoa(options.Tail))
	}
	out, errs := oci.NewLines("stdout", emit), oci.NewLines("stderr", emit)
	cmd := exec.CommandContext(ctx, "podman", append(args, f.ID)...)
	cmd.Stdout, cmd.Stderr = out, errs
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("logs of container %s of Podman: %w", native(f).Name, err)
	}
	return errors.Join(err, out.Flush(), errs.Flush())
}

// Exec runs a process in a running container.
func (a *adapter) Exec(ctx context.Context, f oci.Container, process engine.Exec) (int, error) {
	args := []string{"exec"}
	if process.Stdin != nil {
		args = append(args, "--interactive")
	}
	if process.User != "" {
		args = append(args, "--user="+process.User)
	}
	if process.Dir != "" {
		args = append(args, "--workdir="+process.Dir)
	}
	for _, variable := range process.Env {
		args = append(args, "--env="+variable)
	}
	cmd := exec.CommandContext(ctx, "podman", append(append(args, f.ID), process.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = process.Stdin, process.Stdout, process.Stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &ended) {
		return ended.ExitCode(), nil // its own, or Podman's, which has said why
	}
	return 0, errors.Join(ctx.Err(), err)
}
