package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
)

// NetworkFor returns the network namespace in which CRIU should run when it dumps a container: the
// namespace that the engine keeps for the container, so that it is not in the images, or "" for this
// process's own. pids are all of the container's processes.
//
// As an external namespace it would not be in the images either, except for connection tracking. For that,
// CRIU reads the kernel's whole table twice (dump_nf_ct in criu/net.c). With the usual 262,144 buckets,
// even if all are empty, this takes 11 ms of the freeze. Only TUN devices need an external namespace
// (dump_tunfile in criu/tun.c).
func NetworkFor(spec *specs.Spec, pids []int) (string, error) {
	if spec.Linux == nil {
		return "", errors.New("the specification has no linux part")
	}
	path := ""
	for _, n := range spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			path = n.Path
		}
	}
	for _, pid := range pids {
		found, err := holdsTun(pid)
		if err != nil {
			return "", fmt.Errorf("look for TUN devices of process %d: %w", pid, err)
		}
		if found {
			return "", nil
		}
	}
	return path, nil
}

// holdsTun reports whether a process has /dev/net/tun open, under any name.
func holdsTun(pid int) (bool, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if descriptors.IsGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		info, err := os.Stat(dir + "/" + entry.Name())
		if descriptors.IsGone(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		if isTun(info) {
			return true, nil
		}
	}
	return false, nil
}

func isTun(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return false
	}
	number := uint64(st.Rdev)
	return unix.Major(number) == 10 && unix.Minor(number) == 200 // Documentation/admin-guide/devices.txt
}
