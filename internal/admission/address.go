package admission

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// examineAddress lists what stands against a container having its address here.
func (a *Admission) examineAddress(ctx context.Context, definition engine.Definition) ([]migration.Problem,
	error) {
	address := definition.Network.Address
	if !definition.Network.Pooled() {
		return a.examineForwarded(definition), nil // the engine knows whether else it can have it
	}
	what := "address " + address.String()
	if _, err := a.network.Home(address); err != nil {
		return []migration.Problem{{What: what, Why: err.Error(), Remedy: "use nodes of one cluster"}}, nil
	}
	other, err := a.Holder(ctx, address)
	if err != nil {
		return nil, err
	}
	if other.ID != "" {
		return []migration.Problem{{
			What: what, Why: "container " + other.Name + " has it on " + a.node,
			Remedy: "remove that container",
		}}, nil
	}
	if a.leases.AtHome(address) && a.leases.Of(address) != definition.ID {
		return []migration.Problem{{
			What: what, Why: a.node + ", which assigns this address, did not assign it to this " +
				"container",
			Remedy: "create the container again",
		}}, nil
	}
	return nil, nil
}

// examineForwarded refuses an address that this node forwards to another container, which was here before.
func (a *Admission) examineForwarded(definition engine.Definition) []migration.Problem {
	address := definition.Network.Address
	if !definition.Network.OnBridge() {
		return nil
	}
	for _, place := range a.network.BridgedPlaces() {
		if place.Address == address && place.Container != definition.ID && !place.Here && place.Via != "" {
			return []migration.Problem{{
				What: "address " + address.String(),
				Why: fmt.Sprintf("%s forwards packets for it to container %.12s on %s, which was here "+
					"before", a.node, place.Container, place.Via),
				Remedy: "remove that container, or give this one another address",
			}}
		}
	}
	return nil
}

// Holder is the container on this node that has an address; a definition without an id if there is none.
func (a *Admission) Holder(ctx context.Context, address netip.Addr) (engine.Definition, error) {
	if !address.IsValid() {
		return engine.Definition{}, nil
	}
	containers, err := a.containers.Addressed(ctx)
	if err != nil {
		return engine.Definition{}, err
	}
	for _, have := range containers {
		if have.Definition.Network.Address == address {
			return have.Definition, nil
		}
	}
	return engine.Definition{}, nil
}
