package filter

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// overlayRules accepts from the tunnel what each peer sends as itself, and keeps containers away from the
// overlay's ports. The rules for an encrypted tunnel are in IPv4's table, and the rules for a tunnel in the
// clear in the table of the underlay's family. The underlay's own rules are always in the latter.
func (f *Filter) overlayRules(conn *nftables.Conn, table, outer *nftables.Table,
	bridged *nftables.Set) error {
	peers, err := f.peerSet(conn, outer)
	if err != nil {
		return err
	}
	filter := func(table *nftables.Table, name string, hook *nftables.ChainHook) func(...nft.Rule) {
		return nft.Adder(conn, table,
			conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: hook, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10)}))
	}
	inner := outer
	if f.config.Encrypted {
		inner = table
	}
	ends, err := f.endSet(conn, inner)
	if err != nil {
		return err
	}
	f.tunnelInput(filter(inner, "tunnel-input", nftables.ChainHookInput), ends)
	own := filter(outer, "overlay-input", nftables.ChainHookInput)
	other := filter(outer, "overlay-forward", nftables.ChainHookForward)
	source := nft.FieldOf(outer, nft.OffsetSource, nft.OffsetSource6)
	for _, port := range []int{f.config.TunnelPort, f.config.OverlayPort} {
		toOverlay := nft.Join(nft.Protocol(unix.IPPROTO_UDP, expr.CmpOpEq), nft.ToPort(port))
		own(toOverlay, nft.FromGroup(pool.GroupContainer), nft.Drop())
		if outer.Family == nftables.TableFamilyIPv4 {
			f.notFromContainers(own, toOverlay, bridged)
		}
		for _, kind := range containerKinds { // of engines whose networks Godwit does not know
			own(toOverlay, nft.OfKind(nft.MetaKeyIIFKIND, kind), nft.NotFromDevice(f.config.UnderlayDevice),
				source,
				nft.NotIn(peers), nft.Drop())
		}
		// A peer's packets may pass through this node if the peer's machine is behind it.
		other(toOverlay, nft.FieldOf(outer, nft.OffsetDestination, nft.OffsetDestination6), nft.IsIn(peers),
			source,
			nft.NotIn(peers), nft.Drop())
	}
	return nil
}

// tunnelInput drops packets to the tunnel unless a peer sends them as itself. If the overlay is encrypted,
// the device through which a packet comes has authenticated the outer source. The inner hardware address,
// which sets the ingress mark, must be that peer's.
func (f *Filter) tunnelInput(add func(...nft.Rule), ends *nftables.Set) {
	toTunnel := nft.Join(nft.Protocol(unix.IPPROTO_UDP, expr.CmpOpEq), nft.ToPort(f.config.TunnelPort))
	if f.config.Encrypted {
		add(toTunnel, nft.Exprs(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: nft.Native(pool.GroupOverlay)}),
			nft.Drop())
	}
	source, size := nft.FieldOf(ends.Table, nft.OffsetSource, nft.OffsetSource6), uint32(4)
	if ends.Table.Family == nftables.TableFamilyIPv6 {
		size = 16
	}
	const innerSource = 8 + 8 + 6 // after UDP (RFC 768), VXLAN (RFC 7348) and the inner destination
	add(toTunnel, source, nft.Exprs(
		&expr.Payload{DestRegister: unix.NFT_REG32_00 + size/4, Base: expr.PayloadBaseTransportHeader,
			Offset: innerSource, Len: hardwareSize},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: ends.Name, SetID: ends.ID}), nft.Accept())
	add(toTunnel, nft.Drop())
	add(nft.FromGroup(pool.GroupOverlay), nft.Drop()) // everything else from the encrypted device
}

// notFromContainers drops packets with a container's address as source, whatever the interface.
func (f *Filter) notFromContainers(add func(...nft.Rule), packets nft.Rule, bridged *nftables.Set) {
	notOverlay := nft.Exprs(&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: nft.Native(pool.GroupOverlay)})
	add(packets, notOverlay, nft.InPrefix(nft.OffsetSource, f.config.Pool.Prefix, true), nft.Drop())
	for _, from := range f.bridgedAlternatives(nft.OffsetSource, nft.AddressIn(nft.OffsetSource, bridged)) {
		add(packets, notOverlay, from, nft.Drop())
	}
}

// peerSet makes the set of the peers' underlay addresses.
func (f *Filter) peerSet(conn *nftables.Conn, table *nftables.Table) (*nftables.Set, error) {
	peers := &nftables.Set{Table: table, Name: setPeers, KeyType: nft.AddressType(table)}
	var elements []nftables.SetElement
	for _, peer := range f.peers {
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
func (f *Filter) endSet(conn *nftables.Conn, table *nftables.Table) (*nftables.Set, error) {
	key, err := nftables.ConcatSetType(nft.AddressType(table), nftables.TypeEtherAddr)
	if err != nil {
		return nil, fmt.Errorf("describe the set of the tunnel's ends: %w", err)
	}
	ends := &nftables.Set{Table: table, Name: setEnds, KeyType: key, Concatenation: true}
	var elements []nftables.SetElement
	for number, peer := range f.peers {
		if peer.End.IsValid() {
			// registers have four bytes, so the element is padded
			whole := slices.Concat(peer.End.AsSlice(), pool.TunnelMAC(number), make([]byte, 2))
			elements = append(elements, nftables.SetElement{Key: whole})
		}
	}
	if err := conn.AddSet(ends, elements); err != nil {
		return nil, fmt.Errorf("describe the set of the tunnel's ends: %w", err)
	}
	return ends, nil
}
