package criu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Externals are the parts of a container that come from outside of it, with the keys that `runc
// restore` and the proxy use.
type Externals struct {
	Mounts   []Mount
	External []string // "net[INODE]:extRootNetNS" and the like
}

// MountKeys returns where in the container the external mounts are; nil if they are not known.
func (e Externals) MountKeys() []string {
	if e.Mounts == nil {
		return nil
	}
	keys := make([]string, 0, len(e.Mounts))
	for _, m := range e.Mounts {
		keys = append(keys, m.Key)
	}
	return keys
}

// networkKey is the name under which `runc restore` gives CRIU the network namespace.
const networkKey = "extRootNetNS"

// ExternalFor computes, from a container's OCI specification and its first process, what `runc checkpoint`
// would tell CRIU to leave out of the images (libcontainer/criu_linux.go), and the masked directories,
// which the proxy handles. rootfs is the container's root file system as the caller sees it.
func ExternalFor(spec *specs.Spec, rootfs string, pid int) (Externals, error) {
	if spec.Linux == nil {
		return Externals{}, errors.New("the specification has no linux part")
	}
	var e Externals
	root, err := os.Open(rootfs)
	if err != nil {
		return Externals{}, fmt.Errorf("find external mounts: %w", err)
	}
	defer root.Close()
	for _, m := range spec.Mounts {
		if m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind") {
			dest := resolveIn(root, m.Destination)
			e.Mounts = append(e.Mounts, Mount{dest, dest})
		}
	}
	cgroups, err := externalCgroupMounts(spec, pid)
	if err != nil {
		return Externals{}, err
	}
	e.Mounts = append(e.Mounts, cgroups...)
	masked, err := maskedMounts(spec.Linux.MaskedPaths, pid)
	if err != nil {
		return Externals{}, err
	}
	e.Mounts = append(e.Mounts, masked...)
	for _, d := range spec.Linux.Devices {
		e.Mounts = append(e.Mounts, Mount{d.Path, d.Path})
	}
	e.External, err = externalNamespaces(spec.Linux.Namespaces)
	return e, err
}

// resolveIn follows the symbolic links of a path within a root, as the engine did when it mounted something
// there. It returns a path that does not exist unchanged.
func resolveIn(root *os.File, path string) string {
	path = filepath.Clean("/" + path)
	fd, err := unix.Openat2(int(root.Fd()), path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return path
	}
	defer unix.Close(fd)
	full, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return path
	}
	base, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", root.Fd()))
	if err != nil {
		return path
	}
	rest, ok := strings.CutPrefix(full, strings.TrimSuffix(base, "/"))
	if !ok || !strings.HasPrefix(rest, "/") {
		return path
	}
	return rest
}

// maskedDirectory is the key of the directory with which the proxy hides a directory. It is part of the
// images' format.
const maskedDirectory = "godwit-masked-directory"

// maskedMounts returns the mounts that hide files and directories of the node. The engine hides a file
// under a bind mount of /dev/null, and a directory under an empty tmpfs. CRIU would dump and restore the
// tmpfs, which costs 7 ms each within the freeze, because it runs tar, sh and gzip. So the restore proxy
// puts an empty directory there instead.
func maskedMounts(paths []string, pid int) ([]Mount, error) {
	var mounts []Mount
	for _, path := range paths {
		info, err := os.Stat(fmt.Sprintf("/proc/%d/root/%s", pid, path))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find masked path %s: %w", path, err)
		}
		name := os.DevNull
		if info.IsDir() {
			name = maskedDirectory
		}
		mounts = append(mounts, Mount{path, name})
	}
	return mounts, nil
}

// externalCgroupMounts returns the version 1 cgroup mounts of a container without a cgroup namespace, which
// are bind mounts of the node's own. Mounts of version 2, and of both versions in a cgroup namespace, are
// real mounts, which CRIU dumps.
func externalCgroupMounts(spec *specs.Spec, pid int) ([]Mount, error) {
	index := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Type == "cgroup" })
	if hasCgroupNamespace(spec) || index < 0 {
		return nil, nil
	}
	all, err := kernel.ReadMounts(pid)
	if err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	var mounts []Mount
	prefix := strings.TrimSuffix(spec.Mounts[index].Destination, "/") + "/"
	for _, m := range all {
		if m.Type == "cgroup" && strings.HasPrefix(m.Point, prefix) {
			mounts = append(mounts, Mount{m.Point, m.Point})
		}
	}
	return mounts, nil
}

func hasCgroupNamespace(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
}

// externalNamespaces returns the names of namespaces given by path, in the form in which `runc restore`
// looks them up.
func externalNamespaces(namespaces []specs.LinuxNamespace) ([]string, error) {
	keys := map[specs.LinuxNamespaceType][2]string{
		specs.NetworkNamespace: {"net", networkKey},
		specs.PIDNamespace:     {"pid", "extRootPidNS"},
	}
	var external []string
	for _, n := range namespaces {
		key, ok := keys[n.Type]
		if !ok || n.Path == "" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(n.Path, &st); err != nil {
			return nil, fmt.Errorf("find %s namespace %s: %w", n.Type, n.Path, err)
		}
		external = append(external, fmt.Sprintf("%s[%d]:%s", key[0], st.Ino, key[1]))
	}
	return external, nil
}

// WriteDescriptors writes descriptors.json, which `runc restore` needs, to the images. It says what the
// container's standard input, output and error were when runc started it. descriptors comes from runc's
// state.json ("external_descriptors"): three strings such as "pipe:[4711]" or "/dev/null".
func WriteDescriptors(imagesDir string, descriptors []string) error {
	data, err := json.Marshal(descriptors)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(imagesDir, "descriptors.json"), data, 0o600)
}
