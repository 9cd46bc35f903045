package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Containers need the node to forward packets, and one switch enables forwarding for all interfaces. A node
// that did not forward before must not become a router between its other networks. On such a node, the
// packet filter drops packets that are neither from nor to a container. Packets of engines' networks pass:
// an engine that starts later finds the switch on and relies on it.

// forwardingFile exists in the run directory if the node did not forward packets before. Like the switch,
// it does not survive a reboot.
const forwardingFile = "forwarding"

func (n *Network) forwardingPath() string { return filepath.Join(n.config.RunDir, forwardingFile) }

// findForwarding records whether the node forwards packets without Godwit, before Godwit switches
// forwarding on.
func (n *Network) findForwarding() error {
	now, err := forwardingIn(n)
	if err != nil {
		return err
	}
	if !now {
		const text = "This node did not forward packets before Godwit's agent started. See docs/network.md.\n"
		if err := os.WriteFile(n.forwardingPath(), []byte(text), 0o600); err != nil {
			return fmt.Errorf("note that this node did not forward packets: %w", err)
		}
	}
	_, err = os.Stat(n.forwardingPath())
	if n.guarded = err == nil; err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find out whether this node forwarded packets: %w", err)
	}
	return nil
}

func forwardingIn(n *Network) (on bool, err error) {
	err = within(n.ns, func() error {
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
func (n *Network) startForwarding() error {
	if err := within(n.ns, func() error { return sysctl("ipv4/ip_forward", "1") }); err != nil {
		return fmt.Errorf("let the node forward packets: %w", err)
	}
	return nil
}

// endForwarding undoes startForwarding where forwarding was off before.
func (n *Network) endForwarding() error {
	if err := os.Remove(n.forwardingPath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("forget that this node did not forward packets: %w", err)
	}
	if err := within(n.ns, func() error { return sysctl("ipv4/ip_forward", "0") }); err != nil {
		return fmt.Errorf("stop the node from forwarding packets: %w", err)
	}
	return nil
}

// forwardChain drops packets that must not be forwarded: all packets of the encrypted device, which only
// the tunnel uses; from the tunnel, packets unrelated to any container; and, if the node did not forward
// before, all other packets unrelated to any container.
func (n *Network) forwardChain(conn *nftables.Conn, table *nftables.Table, bridged *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10)})
	add := ruleAdder(conn, table, chain)
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP} {
		add(group(key, groupOverlay), drop())
	}
	for _, offset := range []uint32{offsetSource, offsetDestination} {
		add(inPool(offset, n.config.Pool, true), accept())
		for _, packets := range n.bridgedAlternatives(offset, isBridged(offset, bridged)) {
			add(packets, accept())
		}
	}
	add(fromGroup(groupTunnel), drop())
	if !n.guarded {
		return
	}
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP} {
		for _, number := range []uint32{groupContainer, groupTunnel, groupHold} {
			add(group(key, number), accept())
		}
	}
	for _, key := range []expr.MetaKey{metaKeyIIFKIND, metaKeyOIFKIND} {
		for _, kind := range containerKinds {
			add(ofKind(key, kind), accept())
		}
	}
	add(drop())
}

// Keys of the kind of an interface, as in "ip -details link" (enum nft_meta_keys,
// linux/netfilter/nf_tables.h; 4.18).
const (
	metaKeyIIFKIND expr.MetaKey = 26
	metaKeyOIFKIND expr.MetaKey = 27
)

// containerKinds are the kinds of interfaces by which engines connect containers to their node.
var containerKinds = []string{"bridge", "veth"}

// ofKind matches packets whose interface is of this kind. A physical interface has no kind, so no such rule
// matches it.
func ofKind(key expr.MetaKey, kind string) rule {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, kind)
	return is(&expr.Meta{Key: key, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: padded})
}
