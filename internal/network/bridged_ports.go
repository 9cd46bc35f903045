package network

import (
	"errors"
	"slices"
)

// YieldPorts stops forwarding from ports of containers that have left if containers that are here have
// these ports now. It returns those ports.
func (n *onBridges) YieldPorts(taken []Published) (yielded []Published, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, one := range n.records.list() {
		if one.Here {
			continue
		}
		kept := make([]Published, 0, len(one.Ports))
		for _, port := range one.Ports {
			if slices.ContainsFunc(taken, port.Conflicts) {
				yielded = append(yielded, port)
			} else {
				kept = append(kept, port)
			}
		}
		one.Ports = kept
		n.records.put(one)
	}
	if len(yielded) == 0 {
		return nil, nil
	}
	return yielded, errors.Join(n.records.save(), n.filterBridged())
}

// ForgetStrangers ends the forwarding to containers at nodes that no longer exist.
func (n *onBridges) ForgetStrangers(member func(number int) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, one := range n.records.list() {
		if !one.Here && !member(one.Via) {
			errs = append(errs, n.forgetBridged(one.Address))
		}
	}
	return errors.Join(errs...)
}
