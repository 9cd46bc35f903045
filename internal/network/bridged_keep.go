package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/godwit/godwit/internal/network/pool"
)

// KeepPassing keeps the rules that the administrator has allowed (AllowRules). While there is something to
// forward, it also repeats Passes.Make, because other programs recreate their chains, as Docker does when it
// starts. And it retries work that failed when a container had moved.
func (n *onBridges) KeepPassing() error {
	n.mu.Lock()
	err := n.finaliseBridged()
	n.neighbours.sendElsewhere()
	n.mu.Unlock()
	err = errors.Join(err, n.passages.KeepAllowed())
	if !n.passes() {
		return err
	}
	err = errors.Join(err, n.passages.Make())
	if !n.passes() { // nothing is left to forward
		err = errors.Join(err, n.passages.Remove())
	}
	return err
}

// passes reports whether there is something to forward for containers on bridges.
func (n *onBridges) passes() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.records.count()+len(n.routed.list) > 0
}

// recoverBridged takes over the records of an earlier process. Containers that were held may run here or
// elsewhere. It leaves out records that it cannot read: their connections are lost, but the rest of the
// node works.
func (n *onBridges) recoverBridged() error {
	all, err := n.records.read()
	if err != nil {
		aside := n.records.path + ".unreadable"
		n.config.Log.Error("the record of containers on bridges cannot be read: packets are no longer "+
			"forwarded to containers that have left",
			"error", err, "kept as", aside)
		if err := os.Rename(n.records.path, aside); err != nil {
			return fmt.Errorf("containers on bridges: %w", err)
		}
	}
	left := err != nil
	defer func() { n.filter.KnowBridged(n.bridgedFilter()) }()
	for _, one := range all {
		if err := n.recoverOne(one); err != nil {
			left = true
			n.config.Log.Error("the record of a container on a bridge is not valid, and is ignored",
				"container",
				one.Container, "address", one.Address, "error", err)
		}
	}
	if left && n.records.count() == 0 {
		return n.flows().Forget(netip.Addr{}, true)
	}
	return nil
}

// recoverOne takes over one record.
func (n *onBridges) recoverOne(one bridged) error {
	if err := n.checkBridged(Bridged{Container: one.Container, Address: one.Address,
		Ports: one.Ports}); err != nil {
		return err
	}
	if _, is := n.records.at(one.Address); is {
		return fmt.Errorf("address is %w: it is listed twice", ErrInvalid)
	}
	if max(one.Via, one.Origin, one.Before) > pool.MaxNodeNumber ||
		min(one.Via, one.Origin, one.Before, one.MTU) < 0 || one.MTU > pool.MaxMTU {
		return fmt.Errorf("number of a node, or the MTU, is %w", ErrInvalid)
	}
	if one.Here {
		bridge, _, err := n.containers.bridgeOf(n.NetnsPath(one.Container), one.Address)
		if err != nil { // its engine stopped it, or the node rebooted
			one.Here = false
			one.undone()
		} else {
			n.containers.all[one.Container] = &attachment{
				address: Address{IP: one.Address, MTU: one.MTU}, device: bridge, bridged: true, blocked: true,
			}
		}
	}
	if one.Here || one.Via != 0 {
		n.records.put(one)
	}
	return nil
}

// finaliseBridgedLater saves the containers' current places and updates the packet filter in the background,
// so that no frozen container waits for the disk. If the process is killed before that, the migration's
// journal says where the container is. If saving fails, the error is logged and KeepPassing tries again.
func (n *onBridges) finaliseBridgedLater() {
	n.background.Add(1)
	go func() {
		defer n.background.Done()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.unfinished = true
		if err := n.finaliseBridged(); err != nil {
			n.config.Log.Warn("cannot record where containers on bridges are; trying again", "error", err)
		}
	}()
}

// finaliseBridged saves the places and updates the packet filter at once, if that is still to be done.
func (n *onBridges) finaliseBridged() error {
	if !n.unfinished {
		return nil
	}
	err := errors.Join(n.records.save(), n.filterBridged())
	n.unfinished = err != nil
	return err
}

// cleanupBridged removes everything that was made for containers on bridges.
func (n *onBridges) cleanupBridged() error {
	n.records.clear()
	err := errors.Join(n.flows().Forget(netip.Addr{}, true), n.passages.Remove())
	if gone := os.Remove(n.records.path); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}
