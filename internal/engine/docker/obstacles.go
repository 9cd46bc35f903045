package docker

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/godwit/godwit/internal/engine"
)

// obstacles lists what of a container's configuration cannot move. Both nodes look: the source, so that it is said before
// anything is asked, and the target, because it is the one that would make it.
func obstacles(h *container.HostConfig) []engine.Problem {
	var found []engine.Problem
	add := func(bad bool, what, why, remedy string) {
		if bad {
			found = append(found, engine.Problem{What: what, Why: why, Remedy: remedy})
		}
	}
	const without = "start it without that, or use mode restart of the application itself"
	add(h.Privileged, "--privileged", "such a container may have any device and mount of the node", without)
	add(h.PidMode != "", "--pid "+string(h.PidMode), "its processes are not its own", without)
	add(h.IpcMode != "" && !h.IpcMode.IsPrivate() && !h.IpcMode.IsNone(), "--ipc "+string(h.IpcMode),
		"shared memory of others would have to move with it", without)
	add(h.UTSMode != "", "--uts "+string(h.UTSMode), "its host name is the node's", without)
	add(h.UsernsMode != "" && h.UsernsMode != "host", "--userns "+string(h.UsernsMode), "user namespaces are not moved", without)
	add(len(h.Devices)+len(h.DeviceRequests) > 0, "--device or --gpus", "what a device knows of the container stays on this node", without)
	add(len(h.VolumesFrom) > 0, "--volumes-from", "the containers would have to move together", "name the volumes with -v")
	add(len(h.Links) > 0, "--link", "the containers would have to move together", without)
	add(!slices.Contains([]string{"", "runc", "io.containerd.runc.v2", Runtime}, h.Runtime), "--runtime "+h.Runtime,
		"only containers of runc can be restored", "start it with runc")
	return append(found, networkObstacles(h.NetworkMode)...)
}

func networkObstacles(mode container.NetworkMode) []engine.Problem {
	switch {
	case mode.IsNone(), mode.IsHost():
		return nil
	case mode.IsContainer():
		return []engine.Problem{{
			What: "--network " + string(mode), Why: "it shares the network of container " + mode.ConnectedContainer() + ", which would have to move with it",
			Remedy: "give it a network of its own",
		}}
	}
	return []engine.Problem{{
		What: "--network " + networkName(mode), Why: "the addresses of Docker's networks are not moved",
		Remedy: "start it with --network host or --network none, or run it with godwit run, which keeps address and connections",
	}}
}

func networkName(mode container.NetworkMode) string {
	if name := strings.TrimSpace(string(mode)); name != "" {
		return name
	}
	return fmt.Sprint(container.NetworkMode("default"))
}
