package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/kernel"
)

// Docker has no hook that could refuse a start. But whenever it starts a container, it first writes the
// container's host name, through its path, into the file that is mounted at /etc/hostname, and only then
// asks a runtime for a process (moby, daemon/container_operations.go, initializeNetworking;
// container/container_unix.go, BuildHostnameFile). A failure ends the start, also after a restart of the
// daemon. So while a copy must not be started, a dangling symbolic link replaces that file. Docker follows
// the link, within the container's directory, and reports the path that it could not write: the path itself
// gives the reason. The file itself, which the running container has mounted, is kept beside the link.

// guardTarget is the link's target, below the container's directory: a path that nobody makes.
const guardTarget = "/this container has moved, or is moving, to another node/see: godwit migration ls"

// asideSuffix is appended to the name of the file while the link takes its place.
const asideSuffix = ".godwit"

var _ oci.Guarder = (*adapter)(nil)

// Guard keeps Docker from starting a container.
func (a *starts) Guard(ctx context.Context, found oci.Container) error {
	path, err := a.hostname(ctx, found)
	if err == nil {
		err = guard(path)
	}
	return err
}

// Unguard lets Docker start the container again.
func (a *starts) Unguard(ctx context.Context, found oci.Container) error {
	path, err := a.hostname(ctx, found)
	if err == nil {
		err = unguard(path)
	}
	return err
}

// hostname returns the path of a container's host name (moby, container.Container.GetRootResourcePath).
// Docker's own answer is the path to which it last tried to write, which may be a link's target.
func (a *starts) hostname(ctx context.Context, found oci.Container) (string, error) {
	root, err := a.directory(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "containers", found.ID, "hostname"), nil
}

// guard keeps Docker from starting a container. It is idempotent.
func guard(path string) error {
	if guarded(path) {
		return nil
	}
	aside := path + asideSuffix
	err := durable.Remove(aside) // a link that a killed agent has left
	if err == nil {
		err = os.Symlink(guardTarget, aside)
	}
	if err == nil { // the file is never missing
		err = unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	}
	if err == nil {
		err = kernel.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("keep Docker from starting the container, by %s: %w", path, err)
	}
	return nil
}

// guarded reports whether the link is in place.
func guarded(path string) bool {
	target, err := os.Readlink(path)
	return err == nil && target == guardTarget
}

// unguard lets Docker start a container again. It is idempotent.
func unguard(path string) error {
	aside := path + asideSuffix
	var err error
	if guarded(path) {
		err = os.Rename(aside, path)
		if errors.Is(err, fs.ErrNotExist) { // somebody has removed the file: Docker makes it again
			err = durable.Remove(path)
		}
	} else {
		err = durable.Remove(aside)
	}
	if err != nil {
		return fmt.Errorf("let Docker start the container again, by %s: %w", path, err)
	}
	return nil
}
