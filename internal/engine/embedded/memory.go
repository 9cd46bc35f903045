package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/files"
	"golang.org/x/sys/unix"
)

// A container's /dev/shm is a directory in memory that this package makes outside of the container and binds into it.
// CRIU would carry a file system in memory of the container's own, but with tar and gzip, which takes 10 ms for an empty
// one and seconds for a full one, within the freeze. As a tree it travels like all other files. For the same reason /dev
// is a part of the root file system (but not of a read-only one: /dev can be written to in every container).
const treeShm = "shm"

// shmOptions are those of Docker.
const (
	shmOptions = "mode=1777,size=64m"
	shmFlags   = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
)

// mountShm makes a container's /dev/shm, empty. An old one is replaced.
func mountShm(place container) error {
	if err := unmount(place.shm()); err != nil {
		return err
	}
	if err := os.MkdirAll(place.shm(), 0o755); err != nil {
		return fmt.Errorf("make directory for /dev/shm: %w", err)
	}
	if err := unix.Mount("tmpfs", place.shm(), "tmpfs", shmFlags, shmOptions); err != nil {
		return fmt.Errorf("mount memory for /dev/shm: %w", err)
	}
	return nil
}

// opaqueAttribute hides what the layers have in a directory (Documentation/filesystems/overlayfs.rst).
const opaqueAttribute = "trusted.overlay.opaque"

// freshDev makes an empty /dev in a container's writable directory, over whatever the image or an earlier start has
// there. The runtime fills it.
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

// maskedDirectories are those of Docker's masked paths that are directories in /sys. Like the directories in memory
// they are bound from outside, here from an empty directory: the runtime would mount an empty file system in memory.
// (It cannot be asked to bind over a directory in /proc, so those remain masked paths.)
func maskedDirectories() []string {
	return []string{"/sys/firmware", "/sys/devices/virtual/powercap"}
}

// presentDirectories leaves out what this node has not.
func presentDirectories(paths []string) []string {
	var present []string
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			present = append(present, path)
		}
	}
	return present
}

// empty is a directory that nobody can write to.
func (p paths) empty() string { return filepath.Join(p.run, "empty") }

func (p paths) makeEmpty() error {
	err := os.Mkdir(p.empty(), 0o555)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make empty directory: %w", err)
	}
	return nil
}
