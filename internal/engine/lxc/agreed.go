package lxc

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/criu/vet"
)

// agreed returns what the configuration, with its includes, allows a container to have.
func agreed(settings []setting) vet.Agreed {
	a := vet.Agreed{
		Capabilities:    capabilities(settings),
		NoNewPrivileges: last(settings, "lxc.no_new_privs") == "1",
		Filtered:        last(settings, "lxc.seccomp.profile") != "",
		NetworkHeld:     true, // the CRIU wrapper enters it
		// LXC's containers share nothing with the node: a configuration that shares something is not
		// movable.
		Namespaces: []specs.LinuxNamespaceType{
			specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace,
			specs.NetworkNamespace,
			specs.CgroupNamespace,
		},
		Covered:   []string{"/proc", "/sys", "/dev"}, // lxc.mount.auto and lxc.autodev
		AnySource: true,
		Sources:   slices.Clone(alwaysShown),
	}
	switch profile := last(settings, "lxc.apparmor.profile"); profile {
	case "", "generated", "unchanged": // LXC generates a name, or takes one that depends on the node
	default:
		a.Profile = profile
	}
	for _, one := range settings {
		if one.key == "lxc.mount.entry" {
			a.Mounts, a.Sources = mountEntry(one.value, a.Mounts, a.Sources)
		}
	}
	return a
}

// alwaysShown are files and directories of the node that LXC shows to containers: cgroups by
// lxc.mount.auto, devices, and lxcfs, if the node has it.
var alwaysShown = []string{
	"/sys/fs/cgroup", "/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random", "/dev/tty",
	"/dev/pts", "/dev/console",
	"/var/lib/lxcfs",
}

func mountEntry(entry string, mounts []vet.Mount, sources []string) ([]vet.Mount, []string) {
	fields := strings.Fields(entry)
	if len(fields) < 4 {
		return mounts, sources
	}
	options := strings.Split(fields[3], ",")
	mount := vet.Mount{Point: filepath.Join("/", fields[1]), Type: fields[2],
		ReadOnly: slices.Contains(options, "ro")}
	if slices.Contains(options, "bind") {
		mount.Type = "bind"
		sources = append(sources, filepath.Clean(fields[0]))
		if target, err := filepath.EvalSymlinks(fields[0]); err == nil { // CRIU names the directory itself
			sources = append(sources, target)
		}
	}
	return append(mounts, mount), sources
}

// capabilities returns the capabilities that a configuration leaves. LXC accepts either lxc.cap.keep or
// lxc.cap.drop; an empty value clears earlier ones.
func capabilities(settings []setting) uint64 {
	var keep, drop []string
	for _, one := range settings {
		names := strings.Fields(one.value)
		switch one.key {
		case "lxc.cap.keep":
			keep = append(keep, names...)
			if len(names) == 0 {
				keep = nil
			}
		case "lxc.cap.drop":
			drop = append(drop, names...)
			if len(names) == 0 {
				drop = nil
			}
		}
	}
	if len(keep) > 0 {
		if slices.Equal(keep, []string{"none"}) {
			return 0
		}
		return vet.Capabilities(keep)
	}
	return vet.AllCapabilities &^ vet.Capabilities(drop)
}
