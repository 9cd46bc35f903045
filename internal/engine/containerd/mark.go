package containerd

import (
	"context"
	"fmt"
	"maps"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/godwit/godwit/internal/engine/oci"
)

// movedLabel is the label of a copy whose container has moved. Its value is the target's name.
const movedLabel = "io.godwit.moved-to"

// Mark adds the label to a copy.
func (c changes) Mark(ctx context.Context, found oci.Container, moved oci.Moved) error {
	return c.setMovedLabel(ctx, found, moved.Node)
}

// Unmark removes the label.
func (c changes) Unmark(ctx context.Context, found oci.Container, _ oci.Moved) error {
	return c.setMovedLabel(ctx, found, "")
}

func (c changes) setMovedLabel(ctx context.Context, found oci.Container, node string) error {
	t := native(found)
	labels := map[string]string{}
	maps.Copy(labels, t.container.GetLabels())
	if labels[movedLabel] == node {
		return nil
	}
	labels[movedLabel] = node
	if node == "" {
		delete(labels, movedLabel)
	}
	_, err := c.containers.Update(within(ctx, t.namespace), &containers.UpdateContainerRequest{
		Container:  &containers.Container{ID: t.container.GetID(), Labels: labels},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
	})
	if err != nil {
		return fmt.Errorf("label container %s: %w", nameOf(found.ID), err)
	}
	return nil
}
