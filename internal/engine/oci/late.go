package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// Some engines hold a lock from when they start a container until it runs. Such an engine is told to start
// the container late, when everything has come except what comes in the freeze. Until then the container is
// only created. What has come meanwhile is already in its place. But an engine that starts a container
// writes there (mount points, the image's files for a new volume, its owner). So the engine sees other,
// empty directories in these places.

// StartsLate reports whether engine.LateArrival starts an arrival.
func (o *endings) StartsLate(d engine.Definition) bool {
	x, err := o.adapter.Expect(d)
	return err == nil && x.Late
}

// waitForStart prepares the places for content that may come before the engine has started the container.
func (a *arrival) waitForStart(ctx context.Context) error {
	// the volumes must be this arrival's
	if err := a.arrivals.volumes.emptyVolumes(ctx, a.definition); err != nil || a.shm == "" {
		return err
	}
	if err := os.MkdirAll(a.shm, 0o700); err != nil {
		return err
	}
	// as Podman mounts it (libpod, container_internal_linux.go, mountSHM)
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("shm", a.shm, "tmpfs", flags,
		fmt.Sprintf("mode=1777,size=%d", a.expected.ShmBytes)); err != nil {
		return fmt.Errorf("make its /dev/shm: %w", err)
	}
	var err error
	a.shmMade, err = os.Stat(a.shm)
	return err
}

// undisturbed returns an error if somebody else has tried to start the container. The engine refuses such a
// start, but then cleans up, and so removes what was prepared.
func (a *arrival) undisturbed() error {
	_, err := os.Lstat(a.restoreDir.Images())
	if err == nil && a.shmMade != nil {
		var now os.FileInfo
		if now, err = os.Stat(a.shm); err == nil && !os.SameFile(now, a.shmMade) {
			err = errors.New("its /dev/shm was replaced")
		}
	}
	if err != nil {
		return fmt.Errorf("another program has tried to start or remove it: %w", err)
	}
	return nil
}

// Start makes the engine start a container that is started late. Nothing may be written to its trees
// meanwhile.
func (a *arrival) Start(ctx context.Context) error {
	if !a.expected.Late {
		return nil
	}
	defer a.arrivals.locks.Lock(a.definition.ID)()
	if err := a.startLate(ctx); err != nil {
		return fmt.Errorf("start container %s: %w", a.definition.Name, err)
	}
	if a.pages == nil {
		return nil
	}
	return a.FillFrom(ctx, a.pages)
}

func (a *arrival) startLate(ctx context.Context) error {
	trees, err := a.filled()
	if err == nil {
		err = a.undisturbed()
	}
	if err != nil {
		return err
	}
	for i, tree := range trees {
		if err := setAside(tree); err != nil {
			return errors.Join(err, putBack(trees[:i]))
		}
	}
	err = a.restoreDir.Admit(a.job)
	if err == nil {
		err = a.start(ctx)
	}
	if err == nil {
		err = a.agree()
	}
	if err = errors.Join(err, putBack(trees)); err == nil {
		err = a.undisturbed()
	}
	if err != nil {
		return err
	}
	for _, tree := range trees {
		if tree == a.root.Upper { // the engine has it mounted: see remount
			continue
		}
		if err := files.RemoveTree(asideOf(tree)); err != nil {
			return err
		}
	}
	return a.restoreDir.EmptyMemories()
}

// filled returns the directories to which content has come and to which the engine writes when it starts
// the container.
func (a *arrival) filled() ([]string, error) {
	trees := []string{a.root.Upper}
	for _, v := range Coming(a.definition) {
		path, err := a.arrivals.volumes.VolumePath(v)
		if err != nil {
			return nil, err
		}
		trees = append(trees, path)
	}
	return trees, nil
}

// asideOf returns the path of a directory while the engine sees an empty one in its place, and of the empty
// one after that. The engine removes it with the container, or the volume.
func asideOf(dir string) string { return filepath.Clean(dir) + ".godwit" }

// setAside replaces a directory by an empty one.
func setAside(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if err := os.Rename(dir, asideOf(dir)); err != nil {
		return err
	}
	if err = os.Mkdir(dir, info.Mode().Perm()); err == nil {
		err = os.Chmod(dir, info.Mode())
	}
	if stat, is := info.Sys().(*syscall.Stat_t); is && err == nil {
		err = os.Lchown(dir, int(stat.Uid), int(stat.Gid))
	}
	return err
}

// putBack exchanges directories with those that were set aside.
func putBack(dirs []string) (failed error) {
	for _, dir := range dirs {
		failed = errors.Join(failed, unix.Renameat2(unix.AT_FDCWD, asideOf(dir), unix.AT_FDCWD, dir,
			unix.RENAME_EXCHANGE))
	}
	return failed
}
