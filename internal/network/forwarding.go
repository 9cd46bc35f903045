package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/godwit/godwit/internal/network/namespace"
)

// Containers need the node to forward packets, and one switch enables forwarding for all interfaces. A node
// that did not forward before must not become a router between its other networks. On such a node, the
// packet filter drops packets that are neither from nor to a container. Packets of engines' networks pass:
// an engine that starts later finds the switch on and relies on it.

// forwardingFile exists in the run directory if the node did not forward packets before. Like the switch,
// it does not survive a reboot.
const forwardingFile = "forwarding"

// forwarding switches the node's forwarding of packets on, and off where it was off before.
type forwarding struct{ *node }

func (n *forwarding) forwardingPath() string { return filepath.Join(n.config.RunDir, forwardingFile) }

// findForwarding records whether the node forwards packets without Godwit, before Godwit switches
// forwarding on. It reports whether the node does not, and so must be guarded.
func (n *forwarding) findForwarding() (guarded bool, err error) {
	now, err := n.inNode()
	if err != nil {
		return false, err
	}
	if !now {
		const text = "This node did not forward packets before Godwit's agent started. See docs/network.md.\n"
		if err := os.WriteFile(n.forwardingPath(), []byte(text), 0o600); err != nil {
			return false, fmt.Errorf("note that this node did not forward packets: %w", err)
		}
	}
	_, err = os.Stat(n.forwardingPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("find out whether this node forwarded packets: %w", err)
	}
	return err == nil, nil
}

// inNode reports whether the node forwards packets.
func (n *forwarding) inNode() (on bool, err error) {
	err = namespace.Within(n.ns, func() error {
		value, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		on = strings.TrimSpace(string(value)) != "0"
		return err
	})
	if err != nil {
		return false, fmt.Errorf("find out whether this node forwards packets: %w", err)
	}
	return on, nil
}

// startForwarding must be called after the packet filter is set up.
func (n *forwarding) startForwarding() error {
	if err := namespace.Within(n.ns, func() error {
		return namespace.Sysctl("ipv4/ip_forward",
			"1")
	}); err != nil {
		return fmt.Errorf("let the node forward packets: %w", err)
	}
	return nil
}

// endForwarding undoes startForwarding where forwarding was off before.
func (n *forwarding) endForwarding() error {
	if err := os.Remove(n.forwardingPath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("forget that this node did not forward packets: %w", err)
	}
	if err := namespace.Within(n.ns, func() error {
		return namespace.Sysctl("ipv4/ip_forward",
			"0")
	}); err != nil {
		return fmt.Errorf("stop the node from forwarding packets: %w", err)
	}
	return nil
}
