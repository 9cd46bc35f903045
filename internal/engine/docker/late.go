package docker

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// lateNetworks is the first version of Docker that makes a container's networks when its process is
// there, and no longer by a hook before (moby, daemon/start_linux.go).
const lateNetworks = 28

var _ oci.Networker = (*adapter)(nil)

// NetworksLate tells whether this Docker makes the container's network when its process is there.
func (a *adapter) NetworksLate(ctx context.Context, d engine.Definition) (bool, error) {
	if !d.Network.OnBridge() {
		return false, nil
	}
	told, err := a.api(ctx).ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return false, fmt.Errorf("ask Docker for its version: %w", err)
	}
	return majorOf(told.Version) >= lateNetworks, nil
}

// terminalObstacles refuses a terminal where the network would be made before it is there: Docker
// wants to have it first, and it is made when the container is restored.
func (a *adapter) terminalObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem,
	error) {
	late, err := a.NetworksLate(ctx, d)
	if err != nil || !late || !x.Config.Tty {
		return nil, err
	}
	return []engine.Problem{{
		What: "network " + d.Network.Bridge + " and a terminal (--tty)",
		Why: fmt.Sprintf("Docker %d and later make a container's networks only once they have its "+
			"terminal, too late for an arriving container", lateNetworks),
		Remedy: "start it without --tty, or with --network none or host, or move it to a node with Docker " +
			"26 or earlier",
	}}, nil
}

// majorOf is the first number of a version of Docker's; 0 if there is none.
func majorOf(version string) int {
	major, _, _ := strings.Cut(version, ".")
	number, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return number
}
