package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/cgroup"

	"github.com/godwit/godwit/internal/engine/mounts"
)

// sweep ends all processes of a container and removes what the kernel and runc have of it: cgroup, runc's
// state, mounts. It needs only the container's ID, and is idempotent.
func sweep(ctx context.Context, r runc, files container) error {
	if err := killCgroup(ctx, files); err != nil {
		return err
	}
	return errors.Join(r.forget(files.id), mounts.UnmountBelow(files.runDir()))
}

// killCgroup kills all processes in a container's cgroup and removes the cgroup.
func killCgroup(ctx context.Context, files container) error {
	group, err := cgroup.Open(files.cgroup())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open cgroup of container %.12s: %w", files.id, err)
	}
	// the container's monitor may be removing the group, too
	if err := group.Kill(ctx); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("kill container %.12s: %w", files.id, err)
	}
	if err := group.Remove(); err != nil {
		return fmt.Errorf("remove cgroup of container %.12s: %w", files.id, err)
	}
	return nil
}
