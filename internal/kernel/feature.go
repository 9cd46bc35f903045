package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is wrapped by the errors of Probe when the kernel says that it lacks the feature. Any
// other error means that the probe could not find out.
var ErrUnsupported = errors.New("not supported by this kernel")

// Feature is a feature that a kernel may have.
type Feature struct {
	Name    string // for people
	Minimum string // first Linux version with it, and the required configuration option
	probe   func() error
}

// Features lists all features that Godwit uses, in an order that is useful to read.
func Features() []Feature {
	return []Feature{
		{"checkpoint and restore", "Linux 3.11 with CONFIG_CHECKPOINT_RESTORE", probeCheckpoint},
		{"time namespaces", "Linux 5.6 with CONFIG_TIME_NS", probeNamespace("time")},
		{"TCP repair mode", "Linux 3.5 with CONFIG_CHECKPOINT_RESTORE", probeTCPRepair},
		{"socket diagnosis for TCP", "Linux 3.3 with CONFIG_INET_DIAG",
			probeDiag(unix.AF_INET, unix.IPPROTO_TCP)},
		{"socket diagnosis for UDP", "Linux 3.3 with CONFIG_INET_UDP_DIAG",
			probeDiag(unix.AF_INET, unix.IPPROTO_UDP)},
		{"socket diagnosis for unix sockets", "Linux 3.3 with CONFIG_UNIX_DIAG", probeDiag(unix.AF_UNIX, 0)},
		{"socket diagnosis for netlink", "Linux 3.10 with CONFIG_NETLINK_DIAG",
			probeDiag(unix.AF_NETLINK, 0)},
		{"socket diagnosis for packet sockets", "Linux 3.7 with CONFIG_PACKET_DIAG",
			probeDiag(unix.AF_PACKET, 0)},
		{"pidfd_getfd", "Linux 5.6", probePidfdGetfd},
		{"cgroup freezer", "Linux 5.2 with cgroup v2, or CONFIG_CGROUP_FREEZER with v1", probeFreezer},
		{"cgroup.kill", "Linux 5.14 with cgroup v2", probeCgroupKill},
		{"overlayfs", "Linux 3.18 with CONFIG_OVERLAY_FS", probeOverlay},
		{"tmpfs without swap", "Linux 6.4", probeNoswap},
		{"userfaultfd", "Linux 4.11 with CONFIG_USERFAULTFD", probeUserfault(0)},
		{"userfaultfd asynchronous write-protection", "Linux 6.7, on arm64 6.10",
			probeUserfault(uffdWPAsync | uffdWPUnpopulated)},
		{"PAGEMAP_SCAN", "Linux 6.7", probePagemapScan},
		{"soft-dirty", "Linux 3.11 with CONFIG_MEM_SOFT_DIRTY", probeSoftDirty},
	}
}

// ProbeWriteProtect reports whether WriteProtect and Pagemap.Written can see writes to the memory of other
// processes: nil if they can.
func ProbeWriteProtect() error {
	return probeNamed("pidfd_getfd", "userfaultfd asynchronous write-protection", "PAGEMAP_SCAN")
}

// ProbeSoftDirty reports whether AddressSpace.ClearSoftDirty and Pagemap.SoftDirty can see them: nil if
// they can.
func ProbeSoftDirty() error { return probeNamed("soft-dirty") }

func probeNamed(names ...string) error {
	for _, f := range Features() {
		if slices.Contains(names, f.Name) {
			if err := f.Probe(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Probe tries the feature on the running kernel. It returns nil when the feature is there, an error that
// wraps ErrUnsupported and names the minimum version when it is not, and another error when the probe
// itself failed.
func (f Feature) Probe() error {
	err := f.probe()
	if err == nil {
		return nil
	}
	if saysNo(err) {
		return fmt.Errorf("%s: %w (needs %s; the kernel says: %w)", f.Name, ErrUnsupported, f.Minimum, err)
	}
	return fmt.Errorf("%s: could not be tried: %w", f.Name, err)
}

// saysNo distinguishes an answer of the kernel from a probe that failed for another reason, such as a
// missing privilege.
func saysNo(err error) bool {
	for _, no := range []error{ErrUnsupported, unix.ENOSYS, unix.EINVAL, unix.ENOTTY, unix.ENODEV,
		unix.EOPNOTSUPP,
		unix.ENOPROTOOPT, unix.EPROTONOSUPPORT, unix.ENOENT} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// probeCheckpoint queries the size of prctl(2)'s PR_SET_MM_MAP, which exists only with
// CONFIG_CHECKPOINT_RESTORE.
func probeCheckpoint() error { return mmMapSize() }

func probeNamespace(kind string) func() error {
	return func() error {
		_, err := os.Stat("/proc/self/ns/" + kind)
		return err
	}
}

func probeTCPRepair() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
}

// probePidfdGetfd duplicates one of this process's own descriptors.
func probePidfdGetfd() error {
	pidfd, err := PidfdOpen(os.Getpid())
	if err != nil {
		return err
	}
	defer pidfd.Close()
	fd, err := PidfdGetfd(pidfd, int(pidfd.Fd()))
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// probeFreezer looks for a hierarchy that can freeze. The root group of version 2 has no cgroup.freeze, so
// the probe makes and removes a group.
func probeFreezer() error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if !h.Unified && strings.Contains(","+h.Controllers+",", ",freezer,") {
			return nil
		}
	}
	return probeCgroupFile("cgroup.freeze")
}

func probeCgroupKill() error { return probeCgroupFile("cgroup.kill") }

// probeCgroupFile makes a version 2 group, checks whether it has a file, and removes it.
func probeCgroupFile(name string) error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if !h.Unified {
			continue
		}
		dir, err := os.MkdirTemp(h.mount, "godwit-probe-")
		if err != nil {
			return err
		}
		_, err = os.Stat(filepath.Join(dir, name))
		return errors.Join(err, unix.Rmdir(dir))
	}
	return fmt.Errorf("cgroup v2 is not mounted: %w", ErrUnsupported)
}

func probeOverlay() error { return probeMountOption("overlay", "") }

func probeNoswap() error { return probeMountOption("tmpfs", "noswap") }

// probeMountOption opens a file system context and sets an option in it; nothing is mounted.
func probeMountOption(fsType, option string) error {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if option == "" {
		return nil
	}
	return unix.FsconfigSetFlag(fd, option)
}
