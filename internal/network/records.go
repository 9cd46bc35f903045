package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/network/pool"
)

// bridgedFileLimit bounds the size of the file of containers on bridges.
const bridgedFileLimit = 4 << 20

func (n *Network) bridgedPath() string { return filepath.Join(n.config.StateDir, "bridged.json") }

// recoverBridged takes over the records of an earlier process. Containers that were held may run here or
// elsewhere. It leaves out records that it cannot read: their connections are lost, but the rest of the
// node works.
func (n *Network) recoverBridged() error {
	all, err := n.readBridged()
	if err != nil {
		aside := n.bridgedPath() + ".unreadable"
		n.config.Log.Error("the record of containers on bridges cannot be read: packets are no longer "+
			"forwarded to containers that have left",
			"error", err, "kept as", aside)
		if err := os.Rename(n.bridgedPath(), aside); err != nil {
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
	if left && len(n.bridged) == 0 {
		return n.flows().Forget(netip.Addr{}, true)
	}
	return nil
}

// readBridged reads the file, which need not exist.
func (n *Network) readBridged() ([]bridged, error) {
	file, err := os.Open(n.bridgedPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(file, bridgedFileLimit+1))
	if err == nil && len(data) > bridgedFileLimit {
		err = fmt.Errorf("file is %w: over %d bytes", ErrInvalid, bridgedFileLimit)
	}
	var entries []json.RawMessage
	if err == nil {
		err = json.Unmarshal(data, &entries)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.bridgedPath(), err)
	}
	all := make([]bridged, len(entries))
	for i, entry := range entries {
		if err := json.Unmarshal(entry, &all[i]); err != nil {
			all[i] = bridged{} // refused below
		}
	}
	return all, nil
}

// recoverOne takes over one record.
func (n *Network) recoverOne(one bridged) error {
	if err := n.checkBridged(Bridged{Container: one.Container, Address: one.Address,
		Ports: one.Ports}); err != nil {
		return err
	}
	if n.bridged[one.Address] != nil {
		return fmt.Errorf("address is %w: it is listed twice", ErrInvalid)
	}
	if max(one.Via, one.Origin, one.Before) > pool.MaxNodeNumber ||
		min(one.Via, one.Origin, one.Before, one.MTU) < 0 || one.MTU > pool.MaxMTU {
		return fmt.Errorf("number of a node, or the MTU, is %w", ErrInvalid)
	}
	if one.Here {
		bridge, _, err := n.bridgeOf(n.NetnsPath(one.Container), one.Address)
		if err != nil { // its engine stopped it, or the node rebooted
			one.Here = false
			one.undone()
		} else {
			n.containers[one.Container] = &attachment{
				address: Address{IP: one.Address, MTU: one.MTU}, device: bridge, bridged: true, blocked: true,
			}
		}
	}
	if one.Here || one.Via != 0 {
		n.bridged[one.Address] = &one
	}
	return nil
}

// saveBridged replaces the file.
func (n *Network) saveBridged() error {
	all := make([]*bridged, 0, len(n.bridged))
	for _, one := range n.bridged {
		all = append(all, one)
	}
	data, err := json.Marshal(all)
	if err == nil && len(data) > bridgedFileLimit {
		err = fmt.Errorf("%d bytes are %w: at most %d", len(data), ErrInvalid, bridgedFileLimit)
	}
	if err == nil {
		err = pool.ReplaceFile(n.bridgedPath(), data)
	}
	if err != nil {
		return fmt.Errorf("save the record of containers on bridges: %w", err)
	}
	return nil
}

// finaliseBridgedLater saves the containers' current places and updates the packet filter in the background,
// so that no frozen container waits for the disk. If the process is killed before that, the migration's
// journal says where the container is. If saving fails, the error is logged and KeepPassing tries again.
func (n *Network) finaliseBridgedLater() {
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
func (n *Network) finaliseBridged() error {
	if !n.unfinished {
		return nil
	}
	err := errors.Join(n.saveBridged(), n.filterBridged())
	n.unfinished = err != nil
	return err
}

// cleanupBridged removes everything that was made for containers on bridges.
func (n *Network) cleanupBridged() error {
	clear(n.bridged)
	err := errors.Join(n.flows().Forget(netip.Addr{}, true), n.passages.Remove())
	if gone := os.Remove(n.bridgedPath()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}
