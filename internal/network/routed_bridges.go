package network

import (
	"errors"
	"slices"
)

// Podman removes a bridge, with all settings that this node has made on it, together with the bridge's last
// container. When Podman makes the bridge again for the next container, this node makes the settings again
// at once, because that container may immediately want to reach a container at another node.

// remakeBridges makes this node answer, on the existing bridges, for all containers that are elsewhere, and
// routes to them.
func (n *onBridges) remakeBridges() error {
	var errs []error
	for _, routed := range n.routed.list {
		errs = append(errs, n.bridges.AnswerForAll(routed.Device))
	}
	for _, one := range n.records.list() {
		if !one.Here && one.Via != 0 && one.Bridge != "" {
			_, err := n.bridges.Answer(one.Bridge, one.Address)
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, n.routeBridged())...)
}

// bridgesChanged calls remakeBridges if a relevant bridge has changed.
func (n *onBridges) bridgesChanged(changed func(name string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	matters := slices.ContainsFunc(n.routed.list, func(one RoutedNetwork) bool { return changed(one.Device) })
	for _, one := range n.records.list() {
		matters = matters || !one.Here && one.Bridge != "" && changed(one.Bridge)
	}
	if !matters {
		return
	}
	if err := n.remakeBridges(); err != nil {
		n.unrouted = true // makes SetRoutedNetworks retry
		n.config.Log.Warn("a bridge does not answer yet for containers on other nodes", "error", err)
	}
}
