package agent

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
)

// leaveBridge adopts a container on a bridge of its engine, so that the agent can hold, quiesce and route it
// like a container of the pool while it leaves.
func (s *source) leaveBridge(ctx context.Context) error {
	own := s.definition
	if !own.Network.OnBridge() {
		return nil
	}
	container, err := s.agent.engines.Inspect(ctx, own.ID)
	if err != nil {
		return err
	}
	ports := make([]network.Published, 0, len(container.Definition.Ports))
	for _, port := range container.Definition.Ports {
		ports = append(ports, network.Published(port))
	}
	err = s.agent.network.AdoptBridged(ctx, fmt.Sprintf("/proc/%d/ns/net", container.PID), network.Bridged{
		Container: own.ID, Address: own.Network.Address, Ports: ports,
	})
	if err != nil {
		return err
	}
	return refuseTarget(s)
}

// refuseTarget refuses connections with the target itself by way of this node: there the container
// would answer it directly, by an address that it does not expect.
func refuseTarget(s *source) error {
	connections, err := s.agent.network.Established(s.definition.ID)
	if err != nil {
		return err
	}
	target, err := hostAddress(s.target.Address)
	if err != nil {
		return err
	}
	for _, one := range connections {
		if one.Remote.Addr() == target {
			return &migration.Refusal{Problems: []migration.Problem{{
				What: "connection with " + one.Remote.String(),
				Why:  "its other end is " + s.target.Name + ", to which the container goes",
				Remedy: "close it before the move, or connect to the container's port at " + s.target.Name +
					" afterwards",
			}}}
		}
	}
	return nil
}
