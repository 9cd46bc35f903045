package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/patience"
)

// List lists all containers. While a container's process is being made, its shim does not answer, so List
// does not query such containers.
func (a *adapter) List(ctx context.Context, busy func(string) bool) ([]oci.Container, error) {
	spaces, err := a.namespaces.List(ctx, &namespaces.ListNamespacesRequest{})
	if err != nil {
		return nil, err
	}
	var all []oci.Container
	for _, space := range spaces.GetNamespaces() {
		if slices.Contains(others, space.GetName()) {
			continue
		}
		listed, err := a.containers.List(within(ctx, space.GetName()), &containers.ListContainersRequest{})
		if err != nil {
			return nil, err
		}
		for _, one := range listed.GetContainers() {
			engineID := engineID(space.GetName(), one.GetID())
			found, err := a.withProcess(ctx, space.GetName(), one, busy(engineID) || a.starting.has(engineID))
			if err == nil { // otherwise runc does not run it
				all = append(all, found)
			}
		}
	}
	return all, nil
}

// withProcess queries containerd for a container's process.
func (a *adapter) withProcess(
	ctx context.Context, namespace string, one *containers.Container, busy bool,
) (oci.Container, error) {
	if busy {
		return describe(namespace, one, nil)
	}
	reply, err := a.tasks.Get(within(ctx, namespace), &tasks.GetRequest{ContainerID: one.GetID()})
	if err != nil && !missing(err) {
		return oci.Container{}, fmt.Errorf("ask containerd about container %s: %w", one.GetID(), err)
	}
	found, err := describe(namespace, one, reply.GetProcess())
	if err == nil {
		// Obstacles lists the problems
		found.Container.Definition.Network, _ = a.networkOf(native(found))
	}
	return found, err
}

// Find queries containerd for a container: by the engine's ID, by its ID on other nodes, or by its ID
// without the namespace if that is unique.
func (a *adapter) Find(ctx context.Context, ref string) (oci.Container, error) {
	unknown := fmt.Errorf("container %.80q of containerd: %w", ref, engine.ErrNotFound)
	if namespace, id := splitEngineID(ref); id != "" {
		return a.get(ctx, namespace, id, unknown)
	}
	all, err := a.List(ctx, func(string) bool { return true }) // to find it, without querying its process yet
	if err != nil {
		return oci.Container{}, fmt.Errorf("ask containerd about container %.80q: %w", ref, err)
	}
	var meant, called []string
	for _, found := range all {
		switch _, id := splitEngineID(found.ID); {
		case found.Container.Definition.ID == ref:
			return a.Find(ctx, found.ID)
		case found.Container.Definition.Name == ref:
			called = append(called, found.ID)
		case id == ref || ref != "" && strings.HasPrefix(found.Container.Definition.ID, ref):
			meant = append(meant, found.ID)
		}
	}
	if len(called) > 0 {
		meant = called
	}
	if len(called) > 1 {
		return oci.Container{}, fmt.Errorf("%d containers of containerd are called %.80q: %s", len(called),
			ref, strings.Join(called, ", "))
	}
	if len(meant) != 1 {
		return oci.Container{}, unknown
	}
	return a.Find(ctx, meant[0])
}

func (a *adapter) get(ctx context.Context, namespace, id string, unknown error) (oci.Container, error) {
	if !namePattern.MatchString(namespace) || !namePattern.MatchString(id) ||
		slices.Contains(others, namespace) {
		return oci.Container{}, unknown
	}
	reply, err := a.containers.Get(within(ctx, namespace), &containers.GetContainerRequest{ID: id})
	if missing(err) {
		return oci.Container{}, unknown
	}
	if err != nil {
		return oci.Container{}, fmt.Errorf("ask containerd about container %.80q: %w", id, err)
	}
	return a.withProcess(ctx, namespace, reply.GetContainer(), a.starting.has(engineID(namespace, id)))
}

// describe converts containerd's answer about a container for other packages.
func describe(namespace string, one *containers.Container, process *task.Process) (oci.Container, error) {
	t := told{namespace: namespace, container: one, process: process}
	if err := json.Unmarshal(one.GetSpec().GetValue(), &t.spec); err != nil {
		return oci.Container{}, err
	}
	if t.spec.Process == nil || t.spec.Linux == nil || t.spec.Root == nil {
		return oci.Container{}, fmt.Errorf("container %s has no Linux process", one.GetID())
	}
	p, created := t.spec.Process, one.GetCreatedAt().AsTime()
	engineID := engineID(namespace, one.GetID())
	sum := sha256.Sum256([]byte(engineID + "@" + strconv.FormatInt(created.UnixNano(), 10)))
	d := engine.Definition{
		Namespace: namespace, ID: hex.EncodeToString(sum[:]), Name: titleOf(namespace, one.GetID(),
			one.GetLabels()), Image: one.GetImage(), Args: p.Args, Env: p.Env, Dir: p.Cwd,
		Hostname: t.spec.Hostname,
		User:     fmt.Sprintf("%d:%d", p.User.UID, p.User.GID), TTY: p.Terminal,
		ReadOnly: t.spec.Root.Readonly, Labels: one.GetLabels(),
		Created: created, Limits: limitsOf(t.spec),
		Volumes: volumesOf(t.spec, keptOf(namespace, one.GetID(), one.GetLabels())),
	}
	ctr := engine.Container{Definition: d, State: engine.Created}
	found := oci.Container{ID: engineID, Container: ctr, Native: t}
	switch process.GetStatus() { //nolint:exhaustive // what is not known does not run
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		found.Container.State, found.Container.PID = engine.Running, int(process.GetPid())
		found.Paused = process.GetStatus() != task.Status_RUNNING
	case task.Status_STOPPED:
		found.Container.State, found.Container.ExitCode = engine.Exited, int(process.GetExitStatus())
		found.Container.Finished = process.GetExitedAt().AsTime()
	}
	var err error
	found.Restart, err = json.Marshal(restartLabels(one.GetLabels()))
	return found, err
}

// StartsAtBoot is false: containerd starts a container that has its restart labels and does not run at any
// time, also once the labels are restored.
func (a *adapter) StartsAtBoot(oci.Container, json.RawMessage) bool { return false }

// Restart sets whether containerd restarts a container that has ended. If a container was restored and
// runs, but the agent died before it heard of the start, containerd must consider it started, too.
func (a *adapter) Restart(ctx context.Context, found oci.Container, policy json.RawMessage) error {
	t := native(found)
	ctx = within(ctx, t.namespace)
	if t.process.GetStatus() == task.Status_CREATED {
		if _, err := a.tasks.Start(ctx, &tasks.StartRequest{ContainerID: t.container.GetID()}); err != nil {
			return fmt.Errorf("start container %s: %w", nameOf(found.ID), err)
		}
	}
	labels := maps.Clone(t.container.GetLabels())
	maps.DeleteFunc(labels, func(name, _ string) bool { return strings.HasPrefix(name, restartPrefix) })
	wanted := map[string]string{}
	if policy != nil {
		if err := json.Unmarshal(policy, &wanted); err != nil {
			return fmt.Errorf("restart policy of container %s: %w", nameOf(found.ID), err)
		}
	}
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, restartLabels(wanted))
	if maps.Equal(labels, t.container.GetLabels()) {
		return nil
	}
	_, err := a.containers.Update(ctx, &containers.UpdateContainerRequest{
		Container:  &containers.Container{ID: t.container.GetID(), Labels: labels},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
	})
	if err != nil {
		return fmt.Errorf("restart policy of container %s: %w", nameOf(found.ID), err)
	}
	return nil
}

func limitsOf(spec specs.Spec) engine.Limits {
	var limits engine.Limits
	if spec.Linux.Resources == nil {
		return limits
	}
	if m := spec.Linux.Resources.Memory; m != nil && m.Limit != nil && *m.Limit > 0 {
		limits.MemoryBytes = *m.Limit
	}
	if c := spec.Linux.Resources.CPU; c != nil && c.Quota != nil && c.Period != nil && *c.Quota > 0 &&
		*c.Period > 0 {
		limits.CPUs = float64(*c.Quota) / float64(*c.Period)
	}
	if p := spec.Linux.Resources.Pids; p != nil && p.Limit != nil && *p.Limit > 0 {
		limits.Pids = *p.Limit
	}
	return limits
}

// volumesOf returns the mounts that are directories or files of the node, except files that another program
// keeps for the container.
func volumesOf(spec specs.Spec, kept func(specs.Mount) bool) []engine.Volume {
	var volumes []engine.Volume
	for _, m := range spec.Mounts {
		if bound(m) && !kept(m) {
			volumes = append(volumes, engine.Volume{
				Kind: engine.Bind, Source: path.Clean(m.Source), Path: path.Clean(m.Destination),
				ReadOnly: slices.Contains(m.Options, "ro"),
			})
		}
	}
	return volumes
}

func bound(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// Root returns a container's root file system. The snapshotter knows its layers, and the shim mounts it in
// its bundle.
func (a *adapter) Root(found oci.Container) (mounts.Overlay, error) {
	t := native(found)
	if t.container.GetSnapshotter() != snapshotter {
		return mounts.Overlay{},
			fmt.Errorf("container %s: only containerd's snapshotter overlayfs is supported", nameOf(found.ID))
	}
	ctx, cancel := asking(context.Background())
	defer cancel()
	target := filepath.Join(bundle(t.namespace, t.container.GetID()), "rootfs")
	root, err := oci.SnapshotRoot(within(ctx, t.namespace), a.snapshots, t.container.GetSnapshotKey(), target)
	if err != nil {
		return root, fmt.Errorf("container %s: %w", nameOf(found.ID), patience.Explain(ctx, err))
	}
	return root, nil
}
