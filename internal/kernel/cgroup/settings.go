package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/godwit/godwit/internal/kernel"
)

// Owner is the owner of a group's directory, or of a file in it. A user other than root who owns a group
// may make groups in it.
type Owner struct {
	UID  uint32      `json:"uid"`
	GID  uint32      `json:"gid"`
	Mode fs.FileMode `json:"mode"`
}

// ownedFiles are the files, and the directory, whose owner changes when a group is delegated to a user.
var ownedFiles = []string{".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks",
	"cgroup.clone_children"}

// ownersOf returns the owners that differ from those that the kernel would set.
func ownersOf(dir string) (map[string]Owner, error) {
	var owners map[string]Owner
	for _, name := range ownedFiles {
		info, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name != "." {
			continue
		}
		if err != nil {
			return nil, err
		}
		usual := Owner{Mode: 0o644}
		if name == "." {
			usual.Mode = 0o755
		}
		one := Owner{Mode: info.Mode().Perm()}
		if stat, is := info.Sys().(*syscall.Stat_t); is {
			one.UID, one.GID = stat.Uid, stat.Gid
		}
		if one == usual {
			continue
		}
		if owners == nil {
			owners = map[string]Owner{}
		}
		owners[name] = one
	}
	return owners, nil
}

// checkOwners refuses owners that another node may not request.
func checkOwners(owners map[string]Owner) error {
	const nobody = 1<<32 - 1 // leaves the owner as it is
	for name, one := range owners {
		if !slices.Contains(ownedFiles, name) || one.Mode&^fs.ModePerm != 0 || one.UID == nobody ||
			one.GID == nobody {
			return fmt.Errorf("owner of %.40q: %d, %d, mode %v", name, one.UID, one.GID, one.Mode)
		}
	}
	return nil
}

func setOwners(dir string, owners map[string]Owner) error {
	for name, one := range owners {
		path := filepath.Join(dir, name)
		if err := os.Chown(path, int(one.UID), int(one.GID)); err != nil {
			return err
		}
		if err := os.Chmod(path, one.Mode); err != nil {
			return err
		}
	}
	return nil
}

// notCarried are settings that a group at the target would not have, with the values of a group in which
// nobody has set them. "max": no limit, "base": as in the container's own group.
var notCarried = map[string]string{
	"memory.memsw.limit_in_bytes": "max", "memory.soft_limit_in_bytes": "max",
	"memory.kmem.limit_in_bytes":     "max",
	"memory.kmem.tcp.limit_in_bytes": "max", "memory.oom_control": "oom_kill_disable 0",
	"memory.swappiness": "base",
	"cpu.idle":          "0", "cpu.cfs_burst_us": "0", "cpu.rt_runtime_us": "0",
	"blkio.throttle.read_bps_device": "", "blkio.throttle.read_iops_device": "",
	"blkio.throttle.write_bps_device":  "",
	"blkio.throttle.write_iops_device": "", "blkio.weight": "base", "blkio.bfq.weight": "base",
	"cpuset.cpus": "base", "cpuset.mems": "base", "cpuset.cpu_exclusive": "base",
	"cpuset.mem_exclusive":       "base",
	"hugetlb.2MB.limit_in_bytes": "max", "hugetlb.1GB.limit_in_bytes": "max", "net_cls.classid": "base",
	"net_prio.ifpriomap": "base",
	"cgroup.max.depth":   "max", "cgroup.max.descendants": "max",
	"cgroup.freeze": "0", "freezer.self_freezing": "0",
}

// unlimited is the smallest number that the kernel uses for no limit.
const unlimited = 1 << 62

// refuseSettings refuses a group with settings that would not be carried, or that is itself frozen.
func refuseSettings(base, dir string) error {
	for name, usual := range notCarried {
		text, err := firstLine(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && usual == "base" {
			usual, err = firstLine(filepath.Join(base, name))
		}
		if err != nil {
			return err
		}
		number, failed := strconv.ParseUint(text, 10, 64)
		if text == usual || usual == "max" && failed == nil && number >= unlimited {
			continue
		}
		return fmt.Errorf("group %s has %s = %.80s: %w", filepath.Base(dir), name, text,
			kernel.ErrUnsupported)
	}
	return nil
}

func firstLine(path string) (string, error) {
	text, err := os.ReadFile(path)
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line, err
}
