// Package mounts makes the mounts that engines make for containers, and takes them away again.
package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is a union mount: read-only layers below one directory that takes all changes.
type Overlay struct {
	Layers []string // lowest first
	Upper  string
	Work   string
	Target string
}

// Mount makes the overlay, with the options that keep its upper directory meaningful on another
// node: whatever the kernel's defaults are, no file refers to a layer by inode (index), by path
// (redirect_dir) or for its data (metacopy); see Documentation/filesystems/overlayfs.rst. The
// layers are given one by one, because all in one string of mount(2) would be limited to a page;
// kernels before 6.5 have only that.
func (o Overlay) Mount() error {
	for _, dir := range []string{o.Upper, o.Work, o.Target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory for overlay: %w", err)
		}
	}
	err := o.mountByDescriptor()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = o.mountByString()
	}
	if err != nil {
		return fmt.Errorf("mount overlay of %d layers at %s: %w", len(o.Layers), o.Target, err)
	}
	return nil
}

func overlayOptions() [][2]string {
	return [][2]string{{"index", "off"}, {"redirect_dir", "off"}, {"metacopy", "off"}}
}

func (o Overlay) mountByDescriptor() error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)
	options := overlayOptions()
	for _, layer := range slices.Backward(o.Layers) { // the first that is given lies on top
		options = append(options, [2]string{"lowerdir+", layer})
	}
	options = append(options, [2]string{"upperdir", o.Upper}, [2]string{"workdir", o.Work})
	for _, option := range options {
		if err := unix.FsconfigSetString(fd, option[0], option[1]); err != nil {
			return fmt.Errorf("option %s=%s: %w", option[0], option[1], err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mount)
	return unix.MoveMount(mount, "", unix.AT_FDCWD, o.Target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func (o Overlay) mountByString() error {
	layers := slices.Clone(o.Layers)
	slices.Reverse(layers)
	data := []string{"lowerdir=" + strings.Join(layers, ":"), "upperdir=" + o.Upper, "workdir=" + o.Work}
	for _, option := range overlayOptions() {
		data = append(data, option[0]+"="+option[1])
	}
	return unix.Mount("overlay", o.Target, "overlay", 0, strings.Join(data, ","))
}

// Unmount takes away all mounts at a path. None is no error.
func Unmount(path string) error {
	for range 16 {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return fmt.Errorf("unmount %s: something mounts there again and again", path)
}

// UnmountBelow takes away the mounts directly below a directory, then at it.
func UnmountBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := Unmount(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Memory makes a directory in memory that only root can enter and that is never swapped out where
// the kernel can do so (noswap, Linux 6.4): what is in it is the memory of a container.
func Memory(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("tmpfs", path, "tmpfs", flags, "mode=0700,size=100%,noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", flags, "mode=0700,size=100%")
	}
	if err != nil {
		return fmt.Errorf("mount memory at %s: %w", path, err)
	}
	return nil
}

// Scratch makes an empty directory in memory in which another program may make a few names.
func Scratch(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", path, "tmpfs", flags, "mode=0755,size=1m,nr_inodes=16k"); err != nil {
		return fmt.Errorf("mount memory at %s: %w", path, err)
	}
	return nil
}
