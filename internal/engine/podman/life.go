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

// Stop makes Podman stop a container.
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

// Remove makes Podman remove a container.
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

// forgetStates removes the runtimes' state of a container that no longer exists: Podman does not make a
// runtime delete a container whose conmon was killed.
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

// startPatience is how long a started container can wait for its state. After 240 s Podman gives up and
// removes what its runtime has made (libpod, define.ContainerCreateTimeout). The difference is for what
// follows the last check of the clock.
const startPatience = 225 * time.Second

// Start makes Podman start a container. The start continues even if the caller gives up: a half-finished
// start would have to be repaired.
func (a *adapter) Start(ctx context.Context, engineID string) error {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "podman", "start", engineID)
	_, err := runBy(ctx, cmd, kernel.StartLasting) // conmon is a child of Podman and outlives it
	return err
}

// Logs passes Podman's log of a container to emit.
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
		return ended.ExitCode(), nil // the process's own code, or Podman's, which has printed the reason
	}
	return 0, errors.Join(ctx.Err(), err)
}
