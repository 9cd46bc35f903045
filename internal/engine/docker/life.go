package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Stop makes Docker stop a container.
func (a *adapter) Stop(ctx context.Context, found oci.Container, grace time.Duration) error {
	var options client.ContainerStopOptions
	if grace >= 0 {
		seconds := int(math.Ceil(grace.Seconds()))
		options.Timeout = &seconds
	}
	if _, err := a.api(ctx).ContainerStop(ctx, found.ID, options); err != nil {
		return fmt.Errorf("stop container %s of Docker: %w", nameOf(native(found)), err)
	}
	return nil
}

// Remove makes Docker remove a container.
func (a *adapter) Remove(ctx context.Context, engineID string, options oci.RemoveOptions) error {
	_, err := a.api(ctx).ContainerRemove(ctx, engineID, client.ContainerRemoveOptions{
		Force: options.Force, RemoveVolumes: options.Volumes,
	})
	// with --rm, Docker removes the container itself
	if err != nil && !errdefs.IsNotFound(err) && !(options.Force && errdefs.IsConflict(err)) {
		return err
	}
	return nil
}

// Start makes Docker start a container.
func (a *adapter) Start(ctx context.Context, engineID string) error {
	_, err := a.api(ctx).ContainerStart(ctx, engineID, client.ContainerStartOptions{})
	return err
}

// Logs passes Docker's log of a container to emit.
func (a *adapter) Logs(
	ctx context.Context, f oci.Container, options engine.LogOptions, emit func(engine.LogEntry) error,
) error {
	found, tail := native(f), "all"
	if options.Tail >= 0 {
		tail = strconv.Itoa(options.Tail)
	}
	logs, err := a.api(ctx).ContainerLogs(ctx, found.ID, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: options.Follow, Tail: tail,
	})
	if err != nil {
		return fmt.Errorf("logs of container %s of Docker: %w", nameOf(found), err)
	}
	defer logs.Close()
	out, errs := oci.NewLines("stdout", emit), oci.NewLines("stderr", emit)
	if found.Config.Tty {
		_, err = io.Copy(out, logs)
	} else {
		_, err = stdcopy.StdCopy(out, errs, logs)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, out.Flush(), errs.Flush())
}

// Exec runs a process in a running container.
func (a *adapter) Exec(ctx context.Context, f oci.Container, process engine.Exec) (int, error) {
	found := native(f)
	made, err := a.api(ctx).ExecCreate(ctx, found.ID, client.ExecCreateOptions{
		User: process.User, Env: process.Env, WorkingDir: process.Dir, Cmd: process.Args,
		AttachStdin: process.Stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return 0, fmt.Errorf("exec in container %s of Docker: %w", nameOf(found), err)
	}
	attached, err := a.api(ctx).ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return 0, fmt.Errorf("exec in container %s of Docker: %w", nameOf(found), err)
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	if process.Stdin != nil {
		go func() {
			_, _ = io.Copy(attached.Conn, process.Stdin) // input that the process does not read may be lost
			_ = attached.CloseWrite()
		}()
	}
	if _, err := stdcopy.StdCopy(orDiscard(process.Stdout), orDiscard(process.Stderr),
		attached.Reader); err != nil {
		return 0, errors.Join(ctx.Err(), err)
	}
	ended, err := a.api(ctx).ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return 0, fmt.Errorf("exec in container %s of Docker: %w", nameOf(found), err)
	}
	return ended.ExitCode, nil
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
