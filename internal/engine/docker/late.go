package docker

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
)

// lateNetworks is the first version of Docker that makes a container's networks when its process is there, and no longer by a hook
// before: a container that is restored in the place of being created would have none (moby, daemon/start_linux.go).
const lateNetworks = 28

// lateNetworkObstacles refuses networks of a Docker that would make them too late.
func (a *adapter) lateNetworkObstacles(ctx context.Context, d engine.Definition, _ extra) ([]engine.Problem, error) {
	if !d.Network.OnBridge() {
		return nil, nil
	}
	told, err := a.api.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask Docker for its version: %w", err)
	}
	if !makesNetworksLate(told.Version) {
		return nil, nil
	}
	return []engine.Problem{{
		What:   "network " + d.Network.Bridge + " of Docker " + told.Version,
		Why:    fmt.Sprintf("Docker %d and later make a container's networks when its process is there, too late for one that arrives", lateNetworks),
		Remedy: "start it with --network none or --network host, or move it to a node with Docker 26 or earlier",
	}}, nil
}

func makesNetworksLate(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	number, err := strconv.Atoi(major)
	return err == nil && number >= lateNetworks
}
