package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
	"github.com/godwit/godwit/internal/engine/contentstore"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/kernel"
)

// specType is containerd's type name for an OCI specification (typeurl of runtime-spec).
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// Create makes an arriving container, and its snapshot.
func (a *adapter) Create(ctx context.Context, d engine.Definition, label, value string) (string, error) {
	x, err := decode(d)
	if err != nil {
		return "", err
	}
	made, err := a.record(d, x, label, value)
	if err != nil {
		return "", err
	}
	if _, err := contentstore.MakeNamespace(ctx, a.namespaces, x.Namespace); err != nil {
		return "", err
	}
	a.images.Name(ctx, d)
	outer := ctx
	ctx = within(ctx, x.Namespace)
	if _, err := a.containers.Create(ctx, &containers.CreateContainerRequest{Container: made}); err != nil {
		return "", err
	}
	// From now on the snapshot is not garbage-collected.
	if _, err = a.snapshots.Prepare(ctx,
		&snapshots.PrepareSnapshotRequest{Snapshotter: snapshotter, Key: x.ID, Parent: x.Chain}); err != nil {
		return "", errors.Join(err, a.forget(context.WithoutCancel(ctx), x.ID))
	}
	if nerdctl.Has(d.Labels) {
		if err := keepForNerdctl(outer, d, x); err != nil {
			return "", errors.Join(err, a.Remove(context.WithoutCancel(outer), engineID(x.Namespace, x.ID),
				oci.RemoveOptions{Force: true}))
		}
	}
	return engineID(x.Namespace, x.ID), nil
}

// EngineID returns the ID of a container that Create makes: its name stays the same within its namespace.
func (a *adapter) EngineID(d engine.Definition) (string, error) {
	x, err := decode(d)
	return engineID(x.Namespace, x.ID), err
}

// forget deletes a container whose snapshot containerd could not make: a snapshot with its key belongs to
// somebody else.
func (a *adapter) forget(ctx context.Context, id string) error {
	ctx, cancel := asking(ctx)
	defer cancel()
	_, err := a.containers.Delete(ctx, &containers.DeleteContainerRequest{ID: id})
	if missing(err) {
		return nil
	}
	return err
}

// record returns containerd's record of a container, without restart labels for now.
func (a *adapter) record(d engine.Definition, x extra, label, value string) (*containers.Container, error) {
	path, err := a.runtimePath()
	if err != nil {
		return nil, err
	}
	settings, err := proto.Marshal(&options.Options{BinaryName: path, SystemdCgroup: x.Systemd})
	if err != nil {
		return nil, err
	}
	labels := maps.Clone(d.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.DeleteFunc(labels, func(name, _ string) bool { return strings.HasPrefix(name, restartPrefix) })
	labels[label] = value
	made, spec := &containers.Container{
		Extensions: x.extensions(),
		ID:         x.ID, Labels: labels, Image: d.Image, Snapshotter: snapshotter, SnapshotKey: x.ID,
		Runtime: &containers.Container_Runtime{Name: runtimeName,
			Options: &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: settings}},
	}, remade(x.Spec)
	if nerdctl.Has(labels) {
		if err := makeNerdctls(made, &spec, nerdctlPlace(x.Namespace, x.ID)); err != nil {
			return nil, err
		}
	}
	encoded, err := json.Marshal(spec)
	made.Spec = &anypb.Any{TypeUrl: specType, Value: encoded}
	return made, err
}

// logFiles are those of arrived containers, in a directory.
type logFiles struct{ directory string }

// Log returns the file to which the shim writes. The logs of arrived containers belong to this package:
// containerd has none.
func (l logFiles) Log(_ context.Context, found oci.Container) (string, error) {
	t := native(found)
	if t.byNerdctl() {
		return t.place().Log(), nil
	}
	process := t.process
	if process == nil {
		return l.path(found.ID), nil
	}
	path, _ := strings.CutPrefix(process.GetStdout(), "file://")
	if !filepath.IsAbs(path) {
		return "", nil
	}
	return path, nil
}

func (l logFiles) path(engineID string) string {
	return filepath.Join(l.directory, restoreDir(engineID)+".log")
}

// Gone removes the output of a container that had arrived, and makes CNI disconnect it, which containerd
// does not do.
func (a *adapter) Gone(engineID string) error {
	if err := a.disconnect(context.Background(), engineID); err != nil {
		return err
	}
	if err := os.Remove(a.logFiles.path(engineID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("log of container %s: %w", nameOf(engineID), err)
	}
	return nil
}

// StartCommand is the hidden command of this program that makes and starts the process of a container. It
// runs as a process of its own, because containerd gives up work for a client that goes away, and agents
// may go away.
const StartCommand = "containerd-start"

// Start starts a container in a separate process.
func (a *adapter) Start(ctx context.Context, engineID string) error {
	namespace, id := splitEngineID(engineID)
	reply, err := a.containers.Get(within(ctx, namespace), &containers.GetContainerRequest{ID: id})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.logFiles.directory, 0o700); err != nil {
		return err
	}
	defer a.starting.begin(engineID)()
	log := a.logOf(namespace, id, reply.GetContainer().GetLabels())
	cmd := exec.Command(a.executable, StartCommand, a.socket, engineID, log)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = kernel.StartLasting(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// StartMain is the main function of StartCommand. It returns the exit code.
func StartMain(args []string) int {
	err := os.ErrInvalid
	if len(args) == 3 {
		var a *adapter
		if a, err = newAdapter(args[0]); err == nil {
			err = a.start(context.Background(), args[1], args[2])
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (a *adapter) start(ctx context.Context, engineID, log string) error {
	namespace, id := splitEngineID(engineID)
	ctx = within(ctx, namespace)
	reply, err := a.snapshots.Mounts(ctx, &snapshots.MountsRequest{Snapshotter: snapshotter, Key: id})
	if err != nil {
		return err
	}
	request := &tasks.CreateTaskRequest{ContainerID: id, Rootfs: reply.GetMounts(), Stdout: log, Stderr: log}
	if _, err := a.tasks.Create(ctx, request); err != nil {
		return err
	}
	_, err = a.tasks.Start(ctx, &tasks.StartRequest{ContainerID: id})
	return err
}

// Logs passes the lines in the file with a container's output, which have no times, to emit.
func (a *adapter) Logs(
	ctx context.Context, found oci.Container, options engine.LogOptions, emit func(engine.LogEntry) error,
) error {
	path, err := a.Log(ctx, found)
	if err == nil && path == "" {
		err = errors.ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("logs of container %s: containerd keeps none, and its output does not go to a "+
			"file (ctr run --log-uri): %w", nameOf(found.ID), err)
	}
	if native(found).byNerdctl() {
		emit = nerdctl.Entries(emit)
	}
	if err := a.show(ctx, found.ID, path, options, emit); err != nil {
		return fmt.Errorf("logs of container %s: %w", nameOf(found.ID), err)
	}
	return nil
}
