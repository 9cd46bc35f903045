package agent

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
)

// arriveOnBridge adopts a container that arrives on a bridge of its engine. The container gets and sends
// nothing until all its sockets are there.
func (t *target) arriveOnBridge(ctx context.Context, arrival engine.Arrival) error {
	own := t.definition
	if !own.Network.OnBridge() {
		return nil
	}
	made, ok := arrival.(engine.Networked)
	if !ok {
		return fmt.Errorf("engine %s has no bridges", own.EngineName)
	}
	netns, err := made.Netns()
	if err != nil {
		return fmt.Errorf("network of container %s: %w", own.Name, err)
	}
	return t.agent.network.AdoptBridged(ctx, netns, network.Bridged{
		Container: own.ID, Address: own.Network.Address, From: t.move.Tracker.Spec.Source,
	})
}
