package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
)

// Stop has Docker stop a container.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	defer e.lock(id)()
	found, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	var options client.ContainerStopOptions
	if grace >= 0 {
		seconds := int(math.Ceil(grace.Seconds()))
		options.Timeout = &seconds
	}
	if _, err := e.api.ContainerStop(ctx, found.ID, options); err != nil {
		return fmt.Errorf("stop container %s of Docker: %w", nameOf(found), err)
	}
	return nil
}

// Remove has Docker remove a container. Its volumes stay.
func (e *Engine) Remove(ctx context.Context, id string, force bool) error {
	defer e.lock(id)()
	if _, arriving, err := e.arriving(id); arriving || err != nil || exists(e.departurePath(id)) {
		return errors.Join(err, fmt.Errorf("remove container %.12s: %w: it is being moved", id, engine.ErrBusy))
	}
	found, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	if _, err := e.api.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: force}); err != nil {
		return fmt.Errorf("remove container %s of Docker: %w", nameOf(found), err)
	}
	return removeIfThere(e.remembered(id))
}

// Logs shows what Docker has logged of a container.
func (e *Engine) Logs(ctx context.Context, id string, options engine.LogOptions, emit func(engine.LogEntry) error) error {
	found, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	tail := "all"
	if options.Tail >= 0 {
		tail = strconv.Itoa(options.Tail)
	}
	logs, err := e.api.ContainerLogs(ctx, found.ID, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: options.Follow, Tail: tail,
	})
	if err != nil {
		return fmt.Errorf("logs of container %s of Docker: %w", nameOf(found), err)
	}
	defer logs.Close()
	out, errs := &lines{stream: "stdout", emit: emit}, &lines{stream: "stderr", emit: emit}
	if found.Config.Tty {
		_, err = io.Copy(out, logs)
	} else {
		_, err = stdcopy.StdCopy(out, errs, logs)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, out.flush(), errs.flush())
}

// maxLine bounds what is kept of a line that does not end: the rest is another entry.
const maxLine = 1 << 20

// lines makes entries of what Docker writes for each line: its time, a space, and the line.
type lines struct {
	stream string
	emit   func(engine.LogEntry) error
	rest   []byte
}

func (l *lines) Write(data []byte) (int, error) {
	l.rest = append(l.rest, data...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		switch {
		case end >= 0:
			end++
		case len(l.rest) >= maxLine:
			end = maxLine
		default:
			return len(data), nil
		}
		if err := l.take(end); err != nil {
			return 0, err
		}
	}
}

// flush emits the last line if it has no end.
func (l *lines) flush() error {
	if len(l.rest) == 0 {
		return nil
	}
	return l.take(len(l.rest))
}

// take emits the first so many bytes.
func (l *lines) take(n int) error {
	entry := engine.LogEntry{Stream: l.stream, Data: bytes.Clone(l.rest[:n])}
	l.rest = l.rest[n:]
	if stamp, text, found := bytes.Cut(entry.Data, []byte(" ")); found {
		if at, err := time.Parse(time.RFC3339Nano, string(stamp)); err == nil {
			entry.Time, entry.Data = at, text
		}
	}
	return l.emit(entry)
}

// Exec runs a process in a running container.
func (e *Engine) Exec(ctx context.Context, id string, process engine.Exec) (int, error) {
	found, err := e.running(ctx, id)
	if err != nil {
		return 0, err
	}
	made, err := e.api.ExecCreate(ctx, found.ID, client.ExecCreateOptions{
		User: process.User, Env: process.Env, WorkingDir: process.Dir, Cmd: process.Args,
		AttachStdin: process.Stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return 0, fmt.Errorf("exec in container %s of Docker: %w", nameOf(found), err)
	}
	attached, err := e.api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return 0, fmt.Errorf("exec in container %s of Docker: %w", nameOf(found), err)
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	if process.Stdin != nil {
		go func() {
			_, _ = io.Copy(attached.Conn, process.Stdin) // what the process does not read it does not want
			_ = attached.CloseWrite()
		}()
	}
	if _, err := stdcopy.StdCopy(orDiscard(process.Stdout), orDiscard(process.Stderr), attached.Reader); err != nil {
		return 0, errors.Join(ctx.Err(), err)
	}
	ended, err := e.api.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
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
