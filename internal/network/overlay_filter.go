package network

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// overlayRules accepts from the tunnel what each peer sends as itself, and keeps containers away from the
// overlay's ports. The rules for an encrypted tunnel are in IPv4's table, and the rules for a tunnel in the
// clear in the table of the underlay's family. The underlay's own rules are always in the latter.
func (n *Network) overlayRules(conn *nftables.Conn, table, outer *nftables.Table,
	bridged *nftables.Set) error {
	peers, err := n.peerSet(conn, outer)
	if err != nil {
		return err
	}
	filter := func(table *nftables.Table, name string, hook *nftables.ChainHook) func(...rule) {
		return ruleAdder(conn, table,
			conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: hook, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10)}))
	}
	inner := outer
	if n.config.encrypted() {
		inner = table
	}
	ends, err := n.endSet(conn, inner)
	if err != nil {
		return err
	}
	n.tunnelInput(filter(inner, "tunnel-input", nftables.ChainHookInput), ends)
	own := filter(outer, "overlay-input", nftables.ChainHookInput)
	other := filter(outer, "overlay-forward", nftables.ChainHookForward)
	source := fieldOf(outer, offsetSource, offsetSource6)
	for _, port := range []int{n.config.Port, n.config.wireguardPort()} {
		toOverlay := join(protocol(unix.IPPROTO_UDP, expr.CmpOpEq), toPort(port))
		own(toOverlay, fromGroup(groupContainer), drop())
		if outer.Family == nftables.TableFamilyIPv4 {
			n.notFromContainers(own, toOverlay, bridged)
		}
		for _, kind := range containerKinds { // of engines whose networks Godwit does not know
			own(toOverlay, ofKind(metaKeyIIFKIND, kind), notFromDevice(n.underlay.Attrs().Name), source,
				notIn(peers), drop())
		}
		// A peer's packets may pass through this node if the peer's machine is behind it.
		other(toOverlay, fieldOf(outer, offsetDestination, offsetDestination6), isIn(peers), source,
			notIn(peers), drop())
	}
	return nil
}

// tunnelInput drops packets to the tunnel unless a peer sends them as itself. If the overlay is encrypted,
// the device through which a packet comes has authenticated the outer source. The inner hardware address,
// which sets the ingress mark, must be that peer's.
func (n *Network) tunnelInput(add func(...rule), ends *nftables.Set) {
	toTunnel := join(protocol(unix.IPPROTO_UDP, expr.CmpOpEq), toPort(n.config.Port))
	if n.config.encrypted() {
		add(toTunnel, is(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: native(groupOverlay)}), drop())
	}
	source, size := fieldOf(ends.Table, offsetSource, offsetSource6), uint32(4)
	if ends.Table.Family == nftables.TableFamilyIPv6 {
		size = 16
	}
	const innerSource = 8 + 8 + 6 // after UDP (RFC 768), VXLAN (RFC 7348) and the inner destination
	add(toTunnel, source, is(
		&expr.Payload{DestRegister: unix.NFT_REG32_00 + size/4, Base: expr.PayloadBaseTransportHeader,
			Offset: innerSource, Len: hardwareSize},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: ends.Name, SetID: ends.ID}), accept())
	add(toTunnel, drop())
	add(fromGroup(groupOverlay), drop()) // everything else from the encrypted device
}

// notFromContainers drops packets with a container's address as source, whatever the interface.
func (n *Network) notFromContainers(add func(...rule), packets rule, bridged *nftables.Set) {
	notOverlay := is(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: native(groupOverlay)})
	add(packets, notOverlay, inPool(offsetSource, n.config.Pool, true), drop())
	for _, from := range n.bridgedAlternatives(offsetSource, isBridged(offsetSource, bridged)) {
		add(packets, notOverlay, from, drop())
	}
}

// peerSet makes the set of the peers' underlay addresses.
func (n *Network) peerSet(conn *nftables.Conn, table *nftables.Table) (*nftables.Set, error) {
	peers := &nftables.Set{Table: table, Name: setPeers, KeyType: addressType(table)}
	var elements []nftables.SetElement
	for _, peer := range n.peers {
		if peer.Underlay.IsValid() {
			elements = append(elements, nftables.SetElement{Key: peer.Underlay.AsSlice()})
		}
	}
	if err := conn.AddSet(peers, elements); err != nil {
		return nil, fmt.Errorf("describe the set of peers: %w", err)
	}
	return peers, nil
}

// endSet makes the set of the peers' permitted outer sources and inner hardware addresses.
func (n *Network) endSet(conn *nftables.Conn, table *nftables.Table) (*nftables.Set, error) {
	key, err := nftables.ConcatSetType(addressType(table), nftables.TypeEtherAddr)
	if err != nil {
		return nil, fmt.Errorf("describe the set of the tunnel's ends: %w", err)
	}
	ends := &nftables.Set{Table: table, Name: setEnds, KeyType: key, Concatenation: true}
	var elements []nftables.SetElement
	for _, peer := range n.peers {
		if end := n.tunnelEndOf(peer); end.IsValid() && !peer.Apart {
			// registers have four bytes, so the element is padded
			whole := slices.Concat(end.AsSlice(), tunnelMAC(peer.Number), make([]byte, 2))
			elements = append(elements, nftables.SetElement{Key: whole})
		}
	}
	if err := conn.AddSet(ends, elements); err != nil {
		return nil, fmt.Errorf("describe the set of the tunnel's ends: %w", err)
	}
	return ends, nil
}

// addressType returns the type of the addresses of a table's family.
func addressType(table *nftables.Table) nftables.SetDatatype {
	if table.Family == nftables.TableFamilyIPv6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// fieldOf loads an address, whose offset differs between IPv4 and IPv6.
func fieldOf(table *nftables.Table, offset, offset6 uint32) rule {
	size := uint32(4)
	if table.Family == nftables.TableFamilyIPv6 {
		offset, size = offset6, 16
	}
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: size})
}

// isIn matches packets whose loaded value is in a set.
func isIn(set *nftables.Set) rule {
	return is(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID})
}

// notIn matches packets whose loaded value is not in a set.
func notIn(set *nftables.Set) rule {
	return is(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID, Invert: true})
}

// notFromDevice matches packets that came in through another device.
func notFromDevice(name string) rule {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return is(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: padded})
}
