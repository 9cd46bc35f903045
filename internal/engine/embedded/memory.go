package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
)

// A container's /dev/shm, and each tmpfs among its volumes, is a directory in memory that this package
// makes outside of the container and binds into it. CRIU can carry a container's own file system in memory,
// but with tar and gzip, which takes 10 ms for an empty one and seconds for a full one, within the freeze.
// As a tree it travels like all other files. For the same reason /dev is a part of the root file system,
// unless that is read-only: /dev must be writable in every container.
const treeShm = "shm"

// shmOptions are Docker's options.
const (
	shmOptions = "mode=1777,size=64m"
	shmFlags   = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
)

// mountMemories makes a container's /dev/shm and its tmpfs volumes, empty. Old ones are replaced.
func mountMemories(place container, d engine.Definition) error {
	if err := mountTmpfs(place.shm(), shmOptions); err != nil {
		return err
	}
	for i, v := range d.Volumes {
		if v.Sort() != engine.Tmpfs {
			continue
		}
		options := "mode=1777"
		if v.SizeBytes > 0 {
			options += ",size=" + strconv.FormatInt(v.SizeBytes, 10)
		}
		if err := mountTmpfs(place.tmpfs(i), options); err != nil {
			return err
		}
	}
	return nil
}

func mountTmpfs(path, options string) error {
	if err := mounts.Unmount(path); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make directory for a tmpfs: %w", err)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", shmFlags, options); err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", path, err)
	}
	return nil
}

// opaqueAttribute hides what the layers have in a directory (Documentation/filesystems/overlayfs.rst).
const opaqueAttribute = "trusted.overlay.opaque"

// freshDev makes an empty /dev in a container's writable directory, in place of the /dev of the image or of
// an earlier start. The runtime fills it.
func freshDev(place container) error {
	dev := filepath.Join(place.upper(), "dev")
	if err := files.RemoveTree(dev); err != nil {
		return fmt.Errorf("empty /dev: %w", err)
	}
	if err := os.Mkdir(dev, 0o755); err != nil {
		return fmt.Errorf("make /dev: %w", err)
	}
	if err := unix.Lsetxattr(dev, opaqueAttribute, []byte("y"), 0); err != nil {
		return fmt.Errorf("hide the image's /dev: %w", err)
	}
	return nil
}
