package docker

import (
	"context"
	"slices"

	"github.com/moby/moby/api/types/container"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Obstacles lists the parts of a container's configuration that cannot move.
func (a *adapter) Obstacles(_ context.Context, found oci.Container) []engine.Problem {
	told := native(found)
	return append(obstacles(told.HostConfig), connectedObstacles(told)...)
}

// obstacles lists the parts of a container's configuration that cannot move. Both nodes check: the source,
// so that the user learns early, and the target, because it would make the container.
func obstacles(h *container.HostConfig) []engine.Problem {
	var found []engine.Problem
	add := func(bad bool, what, why, remedy string) {
		if bad {
			found = append(found, engine.Problem{What: what, Why: why, Remedy: remedy})
		}
	}
	const without = "start it without that"
	add(h.Privileged, "--privileged", "such a container may have any device and mount of the node", without)
	add(h.PidMode != "", "--pid "+string(h.PidMode), "it shares processes with the node or another "+
		"container", without)
	add(h.IpcMode != "" && !h.IpcMode.IsPrivate() && !h.IpcMode.IsNone(), "--ipc "+string(h.IpcMode),
		"shared memory of others would have to move with it", without)
	add(h.UTSMode != "", "--uts "+string(h.UTSMode), "its host name is the node's", without)
	add(h.UsernsMode != "", "--userns "+string(h.UsernsMode), "user namespaces are not moved", without)
	add(len(h.Devices)+len(h.DeviceRequests) > 0, "--device or --gpus",
		"the state of devices stays on this node", without)
	add(len(h.VolumesFrom) > 0, "--volumes-from", "the containers would have to move together",
		"name the volumes with -v")
	add(len(h.Links) > 0, "--link", "the containers would have to move together", without)
	add(!slices.Contains([]string{"", "runc", "io.containerd.runc.v2", Runtime}, h.Runtime),
		"--runtime "+h.Runtime, "only containers of runc can be restored", "start it with runc")
	add(len(h.DeviceCgroupRules) > 0, "--device-cgroup-rule", "it gives access to devices of the "+
		"node", without)
	add(h.CgroupParent != "", "--cgroup-parent "+h.CgroupParent, "that control group is this node's", without)
	add(h.Cgroup != "", "cgroup "+string(h.Cgroup), "it shares the control group of another container",
		without)
	add(len(h.Sysctls) > 0, "--sysctl", "settings of the kernel are not moved", without)
	add(len(h.StorageOpt) > 0, "--storage-opt", "limits of the writable layer are not moved", without)
	add(len(h.Annotations) > 0, "--annotation", "its meaning to the runtime is unknown", without)
	add(h.CPURealtimePeriod != 0 || h.CPURealtimeRuntime != 0, "--cpu-rt-period or --cpu-rt-runtime",
		"real-time shares are not moved", without)
	add(!slices.Contains([]string{"", logDriver, "local", "journald", "none"}, h.LogConfig.Type),
		"--log-driver "+h.LogConfig.Type, "the target would send logs wherever the source tells it "+
			"to", without)
	found = append(append(found, privilegeObstacles(h)...), mountObstacles(h)...)
	return append(found, networkObstacles(h.NetworkMode)...)
}

// privilegeObstacles lists settings that weaken the node's protection against the container. The target
// cannot know who has allowed them at the source.
func privilegeObstacles(h *container.HostConfig) []engine.Problem {
	var found []engine.Problem
	refuse := func(what string) {
		found = append(found, engine.Problem{What: what, Why: "it weakens the isolation of the " +
			"container from its node", Remedy: "start it without that"})
	}
	for _, name := range h.CapAdd {
		if !oci.HarmlessCapability(name, !h.NetworkMode.IsHost()) {
			refuse("--cap-add " + name)
		}
	}
	for _, option := range h.SecurityOpt {
		if !slices.Contains([]string{"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"},
			option) {
			refuse("--security-opt " + option)
		}
	}
	if lacks(h.MaskedPaths, oci.MaskedPaths) || lacks(h.ReadonlyPaths, oci.ReadonlyPaths) {
		refuse("--security-opt systempaths=unconfined")
	}
	return found
}

// lacks reports whether a list of paths lacks some of the wanted ones. Without a list, Docker uses its own.
func lacks(list, wanted []string) bool {
	return list != nil && slices.ContainsFunc(wanted,
		func(path string) bool { return !slices.Contains(list, path) })
}
