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

// Docker has no hook that could refuse a start. But whenever it starts a container it writes the
// container's host name into the file that is mounted at /etc/hostname, through its path, before it
// asks any runtime for a process (moby, daemon/container_operations.go, initializeNetworking;
// container/container_unix.go, BuildHostnameFile); a failure ends the start, also after the daemon
// was restarted. So a symbolic link that leads nowhere takes the place of that file while a copy
// must not be started. Docker follows it, within the container's directory, and says where it could
// not write: the name is the reason. The file itself, which the running container has mounted, is
// kept beside it.

// guardTarget is where the link leads, below the container's directory: to what nobody makes.
const guardTarget = "/this container has moved, or is moving, to another node/see: godwit migration ls"

// asideSuffix is what the name of the file ends with while the link has its place.
const asideSuffix = ".godwit"

var _ oci.Guarder = (*adapter)(nil)

// Guard keeps Docker from starting a container.
func (a *adapter) Guard(ctx context.Context, found oci.Container) error {
	path, err := a.hostname(ctx, found)
	if err == nil {
		err = guard(path)
	}
	return err
}

// Unguard lets Docker start it again.
func (a *adapter) Unguard(ctx context.Context, found oci.Container) error {
	path, err := a.hostname(ctx, found)
	if err == nil {
		err = unguard(path)
	}
	return err
}

// hostname is the file of a container's host name (moby, container.Container.GetRootResourcePath).
// What Docker tells of it is where it last tried to write, which is where a link led.
func (a *adapter) hostname(ctx context.Context, found oci.Container) (string, error) {
	root, err := a.directory(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "containers", found.ID, "hostname"), nil
}

// guard keeps Docker from starting a container. It may be called again.
func guard(path string) error {
	if guarded(path) {
		return nil
	}
	aside := path + asideSuffix
	err := durable.Remove(aside) // a link that an agent was killed over
	if err == nil {
		err = os.Symlink(guardTarget, aside)
	}
	if err == nil { // at no instant the file is missing
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

// guarded tells whether the link is in place.
func guarded(path string) bool {
	target, err := os.Readlink(path)
	return err == nil && target == guardTarget
}

// unguard lets Docker start a container again. Doing nothing is success.
func unguard(path string) error {
	aside := path + asideSuffix
	var err error
	if guarded(path) {
		err = os.Rename(aside, path)
		if errors.Is(err, fs.ErrNotExist) { // somebody has removed it: Docker makes it anew
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
