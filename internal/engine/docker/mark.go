package docker

import (
	"context"
	"fmt"

	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine/oci"
)

// Labels of a container cannot be changed, so its name says that it is a copy of a container that has
// moved.

var _ oci.Marker = (*adapter)(nil)

// Mark renames a copy.
func (a *adapter) Mark(ctx context.Context, found oci.Container, moved oci.Moved) error {
	return a.rename(ctx, found, moved.Name, moved.MarkedName())
}

// Unmark restores the copy's name.
func (a *adapter) Unmark(ctx context.Context, found oci.Container, moved oci.Moved) error {
	return a.rename(ctx, found, moved.MarkedName(), moved.Name)
}

// rename leaves a container alone that has another name: somebody else may have renamed it.
func (a *adapter) rename(ctx context.Context, found oci.Container, from, to string) error {
	if nameOf(native(found)) != from {
		return nil
	}
	options := client.ContainerRenameOptions{NewName: to}
	if _, err := a.api(ctx).ContainerRename(ctx, found.ID, options); err != nil {
		return fmt.Errorf("rename container %s to %s: %w", from, to, err)
	}
	return nil
}
