package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// Whoever starts a container of containerd makes it create a task from the specification that containerd
// keeps of the container (runtime/v2, Create: it writes the bundle's config.json). So a hook in that
// specification, which fails with a reason, refuses each start: by ctr, nerdctl, or containerd's restart
// monitor. The running task has a bundle of its own, and does not see the hook.

// leavingVariable distinguishes this guard's hook from others with the same variable.
const leavingVariable = shim.GuardVariable + "=leaving"

// guardHook returns the hook. A hook without a shell would need a program of Godwit, which might be gone.
func guardHook() specs.Hook {
	const script = `cat >/dev/null
		echo "this container has moved, or is moving, to another node: godwit migration ls" >&2; exit 1`
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", script},
		Env: []string{"PATH=/usr/bin:/bin", leavingVariable}}
}

// changes are those that Godwit makes to what containerd has of containers.
type changes struct{ containers containers.ContainersClient }

// Guard keeps containerd from creating a task of a container.
func (c changes) Guard(ctx context.Context, found oci.Container) error {
	if err := c.changeHooks(ctx, found, guardedHooks); err != nil {
		return fmt.Errorf("keep containerd from starting container %s: %w", nameOf(found.ID), err)
	}
	return nil
}

// Unguard lets containerd create a task again.
func (c changes) Unguard(ctx context.Context, found oci.Container) error {
	if err := c.changeHooks(ctx, found, unguardedHooks); err != nil {
		return fmt.Errorf("let containerd start container %s again: %w", nameOf(found.ID), err)
	}
	return nil
}

// changeHooks changes only the first hooks of a container's specification.
func (c changes) changeHooks(
	ctx context.Context, found oci.Container, change func([]json.RawMessage) ([]json.RawMessage, error),
) error {
	t := native(found)
	was := t.container.GetSpec()
	changed, err := withHooks(was.GetValue(), change)
	if err != nil || changed == nil {
		return err
	}
	_, err = c.containers.Update(within(ctx, t.namespace), &containers.UpdateContainerRequest{
		Container: &containers.Container{ID: t.container.GetID(),
			Spec: &anypb.Any{TypeUrl: was.GetTypeUrl(), Value: changed}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec"}},
	})
	return err
}

// Names in a specification.
const (
	hooksKey    = "hooks"
	createdHook = "createRuntime"
)

// withHooks returns a specification with other hooks; nil if nothing changes. Fields that this package does
// not know stay.
func withHooks(spec []byte, change func([]json.RawMessage) ([]json.RawMessage, error)) ([]byte, error) {
	var all, hooks map[string]json.RawMessage
	if err := json.Unmarshal(spec, &all); err != nil {
		return nil, fmt.Errorf("decode its specification: %w", err)
	}
	var created []json.RawMessage
	if all[hooksKey] != nil {
		if err := json.Unmarshal(all[hooksKey], &hooks); err != nil {
			return nil, fmt.Errorf("decode the hooks of its specification: %w", err)
		}
	}
	if hooks[createdHook] != nil {
		if err := json.Unmarshal(hooks[createdHook], &created); err != nil {
			return nil, fmt.Errorf("decode the hooks of its specification: %w", err)
		}
	}
	changed, err := change(created)
	if err != nil || len(changed) == len(created) {
		return nil, err
	}
	if hooks == nil {
		hooks = map[string]json.RawMessage{}
	}
	if err := setOrDrop(hooks, createdHook, changed, len(changed)); err != nil {
		return nil, err
	}
	if err := setOrDrop(all, hooksKey, hooks, len(hooks)); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// setOrDrop sets a value in an object, or removes the key if the value is empty.
func setOrDrop(object map[string]json.RawMessage, key string, value any, size int) error {
	if size == 0 {
		delete(object, key)
		return nil
	}
	encoded, err := json.Marshal(value)
	object[key] = encoded
	return err
}

// guardedHooks returns hooks with the guard's hook before them, so that nothing is made for a refused
// container.
func guardedHooks(hooks []json.RawMessage) ([]json.RawMessage, error) {
	if slices.ContainsFunc(hooks, isGuard) {
		return hooks, nil
	}
	encoded, err := json.Marshal(guardHook())
	return append([]json.RawMessage{encoded}, hooks...), err
}

// unguardedHooks returns hooks without the guard's hook.
func unguardedHooks(hooks []json.RawMessage) ([]json.RawMessage, error) {
	return slices.DeleteFunc(slices.Clone(hooks), isGuard), nil
}

func isGuard(encoded json.RawMessage) bool {
	var hook specs.Hook
	return json.Unmarshal(encoded, &hook) == nil && slices.Contains(hook.Env, leavingVariable)
}
