package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/bridge"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/nft"
)

// An arriving container receives nothing, not even from itself, until it is plugged in. Its sockets are
// made one after the other. Data that one socket still had to send to another within the container would
// meet no socket, and be answered by a reset. The kernel retransmits dropped packets, including those that
// cannot leave by the interface. The same holds while sockets are dumped one after the other: see Quiesce.
// On a bridge the container does not answer ARP either, because its neighbours would send to it here while
// it is elsewhere.

// criuMark marks the packets by which CRIU tells a socket that its peer has ended the connection
// (SOCCR_MARK, criu/include/netfilter.h; CRIU's own lock lets them through, too).
const criuMark = 0xc114

// blockNamespace makes a network namespace drop incoming packets, and outgoing packets if nothing else
// does. It is idempotent.
func blockNamespace(path string, leaving bool) error {
	drop := nftables.ChainPolicyDrop
	return inTables(path, leaving, func(conn *nftables.Conn, table *nftables.Table) {
		if table.Family == nftables.TableFamilyARP {
			for name, hook := range map[string]uint32{"arriving": arpIn, "leaving": arpOut} {
				conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter,
					Hooknum:  nftables.ChainHookRef(nftables.ChainHook(hook)),
					Priority: nftables.ChainPriorityFilter, Policy: &drop})
			}
			return
		}
		hooks := map[string]*nftables.ChainHook{"arriving": nftables.ChainHookInput}
		if leaving {
			hooks["leaving"] = nftables.ChainHookOutput
		}
		for name, hook := range hooks {
			chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: hook, Priority: nftables.ChainPriorityRaw, Policy: &drop})
			nft.Adder(conn, table, chain)(nft.Exprs(
				&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
					Data: binary.NativeEndian.AppendUint32(nil, criuMark)},
			), nft.Accept())
		}
	})
}

// Hooks of ARP (NF_ARP_IN, linux/netfilter_arp.h).
const (
	arpIn  = 0
	arpOut = 1
)

// BlockNamespace blocks a container's network namespace, ARP included, before its engine makes anything in
// it. AdoptBridged and Route follow. If an engine announces a container's address at once, its neighbours
// would send to it before anybody else could block the namespace, and packets that meet no socket are
// answered by a reset.
func BlockNamespace(path string) error { return blockNamespace(path, true) }

// blockAll blocks the namespaces of all containers here that have the address.
func (n *containers) blockAll(ip netip.Addr) error {
	for id, attached := range n.all {
		if attached.address.IP != ip {
			continue
		}
		// Set even on failure, because the namespace may be blocked. A restarted agent assumes so, too.
		attached.blocked = true
		if err := blockNamespace(n.NetnsPath(id), attached.bridged); err != nil {
			return fmt.Errorf("block the network namespace of container %s: %w", id, err)
		}
	}
	return nil
}

// unblock undoes blockNamespace. It is idempotent.
func (n *containers) unblock(id string, attached *attachment) error {
	if !attached.blocked {
		return nil
	}
	path := n.NetnsPath(id)
	err := inTables(path, attached.bridged,
		func(conn *nftables.Conn, table *nftables.Table) { conn.DelTable(table) })
	if err == nil {
		err = widen(path, attached)
	}
	if err == nil && attached.bridged {
		// after a failure, neighbours that asked meanwhile ask again soon anyway
		_ = bridge.AnnounceWithin(path, attached.address.IP)
	}
	if err == nil {
		attached.blocked = false
	}
	return err
}

// inTables changes our table for all protocols in a container's namespace, and the table for ARP, in one
// transaction. If the kernel cannot filter ARP, inTables filters the rest.
func inTables(path string, arp bool, change func(*nftables.Conn, *nftables.Table)) error {
	families := []nftables.TableFamily{nftables.TableFamilyINet}
	if arp {
		err := inFamilies(path, append(families, nftables.TableFamilyARP), change)
		if !nft.Unsupported(err) {
			return err
		}
	}
	if err := inFamilies(path, families, change); !nft.Unsupported(err) {
		return err
	}
	return nil
}

func inFamilies(path string, families []nftables.TableFamily,
	change func(*nftables.Conn, *nftables.Table)) error {
	inside, err := namespace.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	conn, err := nftables.New(nftables.WithNetNSFd(int(inside)), nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("open the packet filter of %s: %w", path, err)
	}
	defer nft.CloseLater(conn)
	for _, family := range families {
		// Adding an existing table is no error, and an added table can be deleted.
		change(conn, conn.AddTable(&nftables.Table{Name: nft.TableName, Family: family}))
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("change the packet filter of %s: %w; does the kernel have nf_tables with inet?",
			path, err)
	}
	return nil
}
