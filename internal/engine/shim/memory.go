package shim

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// CRIU saves a file system in memory with tar, which costs some 15 ms for an empty one and seconds for a
// full one, within the freeze. So the file systems that the runtime has mounted for a container are sent
// ahead as trees of files, and are bound into the restored container.

// Memories returns the file systems in memory that a runtime mounts for a container, and that the container
// can write to: /dev, usually /dev/shm, and those that the user requested.
func Memories(spec *specs.Spec) []specs.Mount {
	var found []specs.Mount
	for i, m := range spec.Mounts {
		same := func(other specs.Mount) bool {
			return path.Clean(other.Destination) == path.Clean(
				m.Destination)
		}
		if m.Type != "tmpfs" || !path.IsAbs(m.Destination) || slices.Contains(m.Options, "ro") ||
			slices.ContainsFunc(spec.Mounts[i+1:], same) {
			continue
		}
		m.Destination = path.Clean(m.Destination)
		found = append(found, m)
	}
	return found
}

// CgroupRoot returns the mount point of the cgroups of a container without a cgroup namespace, which the
// container can only read: with version 1 the runtime has made a file system in memory there. "" if the
// container is different.
func CgroupRoot(spec *specs.Spec) string {
	named := slices.ContainsFunc(spec.Linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
	i := slices.IndexFunc(spec.Mounts,
		func(m specs.Mount) bool { return m.Type == "cgroup" && slices.Contains(m.Options, "ro") })
	if named || i < 0 {
		return ""
	}
	return path.Clean(spec.Mounts[i].Destination)
}

// Tmpfs returns the directory for the content of a file system in memory that will be mounted at
// destination in the container. Error: fs.ErrNotExist if its runtime has made none.
func (d Dir) Tmpfs(destination string) (string, error) {
	dir := d.tmpfs(destination)
	_, err := os.Lstat(dir)
	return dir, err
}

// MakeEarly makes a file system in memory before the container's runtime is called, which then sets its
// options.
func (d Dir) MakeEarly(destination string) (string, error) {
	dir := d.tmpfs(destination)
	if exists(d.early(dir)) {
		return dir, nil
	}
	// another node determines how many there are
	if early, err := os.ReadDir(d.memories() + earlySuffix); err == nil && len(early) >= maxEarly {
		return "", fmt.Errorf("more than %d file systems in memory", maxEarly)
	}
	if err := mountTmpfs(specs.Mount{Destination: destination, Source: "tmpfs"}, dir, 0); err != nil {
		return "", err
	}
	if err := os.MkdirAll(d.memories()+earlySuffix, 0o700); err != nil {
		return "", err
	}
	return dir, os.WriteFile(d.early(dir), nil, 0o600)
}

const (
	earlySuffix = "-early"
	maxEarly    = 64
)

// early is a mark: a file system in memory was made early.
func (d Dir) early(dir string) string {
	return filepath.Join(d.memories()+earlySuffix, filepath.Base(dir))
}

func (d Dir) cgroups() string { return filepath.Join(d.path, "cgroups") }

func (d Dir) memories() string { return filepath.Join(d.path, "tmpfs") }

func (d Dir) tmpfs(destination string) string {
	sum := sha256.Sum256([]byte(destination)) // it may contain any characters
	return filepath.Join(d.memories(), hex.EncodeToString(sum[:8]))
}

// makeMemories makes the file systems in memory, and makes runc bind them in place of its own.
func (d Dir) makeMemories(spec *specs.Spec) error {
	own := map[string]string{}
	for _, m := range Memories(spec) {
		own[m.Destination] = d.tmpfs(m.Destination)
	}
	if err := d.unmountOthers(own); err != nil {
		return err
	}
	for _, m := range Memories(spec) {
		var flags uintptr
		if exists(d.early(own[m.Destination])) {
			flags = unix.MS_REMOUNT
		}
		if err := mountTmpfs(m, own[m.Destination], flags); err != nil {
			return err
		}
	}
	for i, m := range spec.Mounts {
		if source := own[path.Clean(m.Destination)]; source != "" && m.Type == "tmpfs" {
			spec.Mounts[i].Type, spec.Mounts[i].Source, spec.Mounts[i].Options = "bind", source,
				[]string{"bind"}
		}
	}
	all, err := kernel.ReadMounts(os.Getpid())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m kernel.Mount) bool { return m.Type != "cgroup" })
	root := CgroupRoot(spec)
	if root == "" || len(all) == 0 {
		return nil
	}
	if err := mounts.Unmount(d.cgroups()); err != nil {
		return err
	}
	if err := makeCgroupRoot(d.cgroups(), all); err != nil {
		return err
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{Destination: root, Type: "bind", Source: d.cgroups(),
		Options: []string{"bind"}})
	return nil
}

// unmountOthers removes existing mounts, except those that were made early and are wanted.
func (d Dir) unmountOthers(wanted map[string]string) error {
	all, err := os.ReadDir(d.memories())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, one := range all {
		dir := filepath.Join(d.memories(), one.Name())
		if exists(d.early(dir)) && slices.Contains(slices.Collect(maps.Values(wanted)), dir) {
			continue
		}
		if err := mounts.Unmount(dir); err != nil {
			return err
		}
	}
	return nil
}

// EmptyMemories removes the mount points that runc has made in file systems in memory. The needed ones come
// with the content, or have come to those that were made early.
func (d Dir) EmptyMemories() error {
	all, err := os.ReadDir(d.memories())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, one := range all {
		if dir := filepath.Join(d.memories(), one.Name()); !exists(d.early(dir)) {
			err = errors.Join(err, files.EmptyTree(dir))
		}
	}
	return err
}

// unmountMemories unmounts all of them: a running container has its own mounts of them.
func (d Dir) unmountMemories() error {
	return errors.Join(mounts.UnmountBelow(d.memories()), mounts.Unmount(d.cgroups()))
}

// mountFlags are the options of mounts that do not belong to the file system (mount(8)); 0 is for those
// without an effect here.
var mountFlags = map[string]uintptr{
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME,
	"relatime":   unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME, "sync": unix.MS_SYNCHRONOUS,
	"dirsync": unix.MS_DIRSYNC,
	"rw":      0, "suid": 0, "dev": 0, "exec": 0, "defaults": 0, "async": 0, "atime": 0, "diratime": 0,
	"tmpcopyup": 0,
	"private":   0, "rprivate": 0, "slave": 0, "rslave": 0, "shared": 0, "rshared": 0, "unbindable": 0,
	"runbindable": 0,
}

// mountTmpfs mounts a file system in memory. With MS_REMOUNT it changes the options of one that is mounted
// there.
func mountTmpfs(m specs.Mount, dir string, flags uintptr) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", m.Destination, err)
	}
	var data []string
	for _, option := range m.Options {
		if flag, known := mountFlags[option]; known {
			flags |= flag
		} else {
			data = append(data, option)
		}
	}
	if err := unix.Mount(m.Source, dir, "tmpfs", flags, strings.Join(data, ",")); err != nil {
		return fmt.Errorf("make %s, in memory: %w", m.Destination, err)
	}
	return nil
}

// makeCgroupRoot makes the mount points of hierarchies, as runc does (libcontainer/rootfs_linux.go,
// mountCgroupV1).
func makeCgroupRoot(dir string, hierarchies []kernel.Mount) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=755")
	}
	for _, m := range hierarchies {
		if err == nil {
			err = addHierarchy(dir, filepath.Base(m.Point))
		}
	}
	if err == nil {
		err = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, "")
	}
	if err != nil {
		return fmt.Errorf("make a directory for cgroups: %w", err)
	}
	return nil
}

// addHierarchy adds the mount point of a hierarchy, and a link for each of its controllers if there are
// several.
func addHierarchy(dir, name string) error {
	if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !strings.Contains(name, ",") {
		return nil
	}
	for controller := range strings.SplitSeq(name, ",") {
		if err := os.Symlink(name, filepath.Join(dir, controller)); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
