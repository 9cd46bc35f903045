package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// defaultGrace is how long a container may take to end if nothing else is configured.
const defaultGrace = 10 * time.Second

// killPatience is how long the kernel and containerd may take to end a killed container.
const killPatience = time.Minute

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}

// Stop asks the first process of a container to end, and kills it when grace is over. The stopped container
// stays, as with ctr.
func (a *adapter) Stop(ctx context.Context, found oci.Container, grace time.Duration) error {
	if grace < 0 {
		grace = defaultGrace
	}
	if found.Container.State != engine.Running {
		return nil
	}
	err := a.end(ctx, found, unix.SIGTERM, grace)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = a.end(ctx, found, unix.SIGKILL, killPatience)
	}
	if err != nil {
		return fmt.Errorf("stop container %s of containerd: %w", nameOf(found.ID), err)
	}
	return nil
}

// end sends a signal to a container and waits until it has ended.
func (a *adapter) end(
	ctx context.Context, found oci.Container, signal unix.Signal, wait time.Duration,
) error {
	namespace, id := splitEngineID(found.ID)
	ctx, cancel := context.WithTimeout(within(ctx, namespace), wait)
	defer cancel()
	_, err := a.tasks.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(signal),
		All: signal == unix.SIGKILL})
	if missing(err) {
		return nil
	}
	if err == nil {
		_, err = a.tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if missing(err) {
		return nil
	}
	return err
}

// Remove makes containerd remove a container, with its remaining processes and its snapshot.
func (a *adapter) Remove(ctx context.Context, engineID string, options oci.RemoveOptions) error {
	found, err := a.Find(ctx, engineID)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if found.Container.State == engine.Running && !options.Force {
		return fmt.Errorf("%w: it runs", engine.ErrBusy)
	}
	t := native(found)
	if t.process != nil {
		if err := a.end(ctx, found, unix.SIGKILL, killPatience); err != nil &&
			found.Container.State != engine.Exited {
			return err
		}
	}
	if err := errors.Join(a.disconnect(ctx, engineID), a.disconnectOthers(ctx, engineID)); err != nil {
		return err
	}
	ctx = within(ctx, t.namespace)
	id := t.container.GetID()
	if _, err := a.tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id}); err != nil && !missing(err) {
		return err
	}
	if err := a.forgetShim(ctx, t.namespace, id); err != nil {
		return err
	}
	if t.byNerdctl() {
		if err := nerdctl.Forget(t.place(), t.container.GetLabels()); err != nil {
			return err
		}
	}
	if _, err := a.containers.Delete(ctx, &containers.DeleteContainerRequest{ID: id}); err != nil &&
		!missing(err) {
		return err
	}
	_, err = a.snapshots.Remove(ctx,
		&snapshots.RemoveSnapshotRequest{Snapshotter: t.container.GetSnapshotter(),
			Key: t.container.GetSnapshotKey()})
	if missing(err) {
		err = nil
	}
	return errors.Join(err, a.Gone(engineID))
}

// forgetShim removes the leftovers of a shim that containerd has lost: while its bundle exists, containerd
// makes no other container with that ID.
func (a *adapter) forgetShim(ctx context.Context, namespace, id string) error {
	if _, err := a.tasks.Get(ctx, &tasks.GetRequest{ContainerID: id}); !missing(err) {
		return err // the container has another shim by now
	}
	if err := shim.Forget(bundle(namespace, id)); err != nil {
		return fmt.Errorf("remove what a shim has left: %w", err)
	}
	return nil
}

// Exec runs a process in a running container.
func (a *adapter) Exec(ctx context.Context, found oci.Container, process engine.Exec) (int, error) {
	if err := os.MkdirAll(a.run, 0o700); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(a.run, "exec-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	t := native(found)
	spec, err := execSpec(t.spec, process)
	if err != nil {
		return 0, err
	}
	streams, err := openStreams(dir, process)
	if err != nil {
		return 0, err
	}
	defer streams.close()
	id, execID := t.container.GetID(), "godwit-"+filepath.Base(dir)
	ctx = within(ctx, t.namespace)
	_, err = a.tasks.Exec(ctx, &tasks.ExecProcessRequest{
		ContainerID: id, ExecID: execID, Stdin: streams.stdin, Stdout: streams.stdout, Stderr: streams.stderr,
		Spec: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: spec},
	})
	if err != nil {
		return 0, fmt.Errorf("exec in container %s of containerd: %w", nameOf(found.ID), err)
	}
	remove := sync.OnceFunc(func() { // when it returns, the shim has written all output
		cleanup := context.WithoutCancel(ctx)
		// it has ended, or nobody waits for it
		_, _ = a.tasks.Kill(cleanup, &tasks.KillRequest{ContainerID: id, ExecID: execID,
			Signal: uint32(unix.SIGKILL)})
		_, _ = a.tasks.DeleteProcess(cleanup, &tasks.DeleteProcessRequest{ContainerID: id, ExecID: execID})
	})
	defer remove()
	if _, err := a.tasks.Start(ctx, &tasks.StartRequest{ContainerID: id, ExecID: execID}); err != nil {
		return 0, fmt.Errorf("exec in container %s of containerd: %w", nameOf(found.ID), err)
	}
	streams.fed = func() {
		// the process may have ended
		_, _ = a.tasks.CloseIO(ctx, &tasks.CloseIORequest{ContainerID: id, ExecID: execID, Stdin: true})
	}
	streams.copy()
	reply, err := a.tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: id, ExecID: execID})
	if err != nil {
		return 0, errors.Join(ctx.Err(), err)
	}
	remove()
	streams.wait(ctx)
	return int(reply.GetExitStatus()), nil
}

// execSpec describes an additional process like the first one, with the requested changes.
func execSpec(spec specs.Spec, process engine.Exec) ([]byte, error) {
	p := *spec.Process
	p.Args, p.Terminal, p.Env = process.Args, false, append(append([]string{}, p.Env...), process.Env...)
	if process.Dir != "" {
		p.Cwd = process.Dir
	}
	if process.User != "" {
		uid, err := strconv.ParseUint(process.User, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %.40q: containerd accepts only a numeric user", process.User)
		}
		p.User = specs.User{UID: uint32(uid)}
	}
	return json.Marshal(p)
}

// streams are the named pipes of a process.
type streams struct {
	stdin, stdout, stderr string
	process               engine.Exec
	opened                []*os.File
	fed                   func() // called when all of stdin has been passed on
	output                sync.WaitGroup
}

func openStreams(dir string, process engine.Exec) (*streams, error) {
	s := &streams{stdout: filepath.Join(dir, "stdout"), stderr: filepath.Join(dir, "stderr"),
		process: process}
	names := []string{s.stdout, s.stderr}
	if process.Stdin != nil {
		s.stdin = filepath.Join(dir, "stdin")
		names = append(names, s.stdin)
	}
	for _, name := range names {
		if err := unix.Mkfifo(name, 0o600); err != nil {
			s.close()
			return nil, fmt.Errorf("pipe %s: %w", name, err)
		}
		// Opened for reading and writing, it does not block. The shim has its own end open from the start,
		// and decides when the stream ends.
		file, err := os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			s.close()
			return nil, err
		}
		s.opened = append(s.opened, file)
	}
	return s, nil
}

// copy moves data until wait is called.
func (s *streams) copy() {
	for i, w := range []io.Writer{s.process.Stdout, s.process.Stderr} {
		if w == nil {
			w = io.Discard
		}
		s.output.Go(func() { _, _ = io.Copy(w, s.opened[i]) }) // until its deadline
	}
	if s.stdin != "" {
		go func() {
			_, _ = io.Copy(s.opened[2], s.process.Stdin) // input that the process does not read may be lost
			_ = s.opened[2].Close()
			s.fed()
		}()
	}
}

// wait reads what is still in the pipes, to which nobody writes any more.
func (s *streams) wait(ctx context.Context) {
	for _, file := range s.opened[:2] {
		for unread(file) > 0 && pause(ctx) == nil {
		}
		_ = file.SetReadDeadline(time.Unix(1, 0))
	}
	s.output.Wait()
}

func unread(file *os.File) (bytes int) {
	raw, err := file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	if err != nil {
		return 0
	}
	return bytes
}

func (s *streams) close() {
	for _, file := range s.opened {
		_ = file.Close()
	}
}
