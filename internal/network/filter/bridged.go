package filter

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// setBridged names the set of the addresses of recorded containers on bridges.
const setBridged = "bridged"

// bridgedRules returns the rules for containers on bridges. They do for these containers what other rules
// do for the pool: see the comment of package network.
func (f *Filter) bridgedRules(conn *nftables.Conn, table *nftables.Table, set *nftables.Set,
	inside func(add func(...nft.Rule))) {
	if len(f.bridged)+len(f.routed) == 0 {
		return
	}
	f.bridgedIngress(conn, table, set, inside)
	f.bridgedPass(conn, table, set)
	f.bridgedSource(conn, table, set)
	f.bridgedPorts(conn, table)
}

// bridgedSet describes the set of the addresses of containers on bridges.
func bridgedSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: setBridged, KeyType: nftables.TypeIPAddr}
}

func (f *Filter) bridgedElements() []nftables.SetElement {
	var elements []nftables.SetElement
	for _, one := range f.bridged {
		elements = append(elements, nftables.SetElement{Key: one.Address.AsSlice()})
	}
	return elements
}

// bridgedIngress sets the ingress mark of each connection to a container on a bridge. If a connection is
// older than the container's arrival and none of its packets has come in here, its packets go to the node
// from which the container came: only a SYN opens a connection.
func (f *Filter) bridgedIngress(
	conn *nftables.Conn, table *nftables.Table, set *nftables.Set, inside func(add func(...nft.Rule)),
) {
	chain := conn.AddChain(&nftables.Chain{Name: "bridged-doors", Table: table,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 2)})
	add := nft.Adder(conn, table, chain)
	inside(add)
	in, out := nft.AddressIn(nft.OffsetDestination, set), nft.AddressIn(nft.OffsetSource, set)
	for number := range f.peers {
		add(nft.FromGroup(pool.GroupTunnel), in, nft.FromEthernet(pool.TunnelMAC(number)),
			nft.SetIngressMark(number))
	}
	add(nft.NotGroups(expr.MetaKeyIIFGROUP), in, nft.SetIngressMark(f.config.Pool.Number))
	for _, routed := range f.routed { // from outside: within a routed network the destination decides
		in := nft.Join(inRouted(nft.OffsetDestination, routed, true),
			inRouted(nft.OffsetSource, routed, false))
		for number := range f.peers {
			add(nft.FromGroup(pool.GroupTunnel), in, nft.FromEthernet(pool.TunnelMAC(number)),
				nft.SetIngressMark(number))
		}
		add(nft.NotGroups(expr.MetaKeyIIFGROUP), in, nft.SetIngressMark(f.config.Pool.Number))
	}
	for _, one := range f.bridged {
		ip := one.Address
		if one.Here && one.Via == 0 {
			add(nft.FromGroup(pool.GroupTunnel), nft.IsAddress(nft.OffsetSource, ip),
				nft.MarkWith(f.config.Pool.Number), nft.Accept())
		}
		if one.Origin != 0 {
			add(nft.IsAddress(nft.OffsetSource, ip), nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq),
				nft.OpensNone(),
				nft.InState(expr.CtStateBitNEW), nft.SetIngressMark(one.Origin))
		}
	}
	add(out, nft.UseIngressMark())
	for _, routed := range f.routed {
		from, to := inRouted(nft.OffsetSource, routed, true), inRouted(nft.OffsetDestination, routed, false)
		add(from, to, nft.UseIngressMark())
	}
}

// bridgedPass marks packets that may be forwarded. From the tunnel: packets to a container on a bridge,
// which the node where they came in has accepted, packets to a container in a routed network, and the
// answers to both. From holds: packets that were held. To holds and the tunnel: packets that belong to a
// connection or came to a published port. Packets of the container's neighbours are left to the engine's
// own rules.
func (f *Filter) bridgedPass(conn *nftables.Conn, table *nftables.Table, set *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "bridged-pass", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 1)})
	add := nft.Adder(conn, table, chain)
	pass := nft.Exprs(&expr.Immediate{Register: unix.NFT_REG_1, Data: nft.Native(pool.PassMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
	ins := f.bridgedAlternatives(nft.OffsetDestination, nft.AddressIn(nft.OffsetDestination, set))
	outs := f.bridgedAlternatives(nft.OffsetSource, nft.AddressIn(nft.OffsetSource, set))
	belongs := nft.InState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED | expr.CtStateBitUNTRACKED)
	for _, packets := range slices.Concat(ins, outs) {
		add(nft.FromGroup(pool.GroupHold), packets, pass)
		add(nft.FromGroup(pool.GroupTunnel), packets, belongs, pass)
		// The packet is from the middle of a connection that this node has forgotten or never seen.
		add(nft.FromGroup(pool.GroupTunnel), packets, nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq),
			nft.OpensNone(), pass)
	}
	for _, out := range outs { // of a connection whose ingress mark was restored
		add(nft.FromGroup(pool.GroupTunnel), out, nft.HasIngressMark(), pass)
	}
	add(nft.FromGroup(pool.GroupTunnel), nft.AddressIn(nft.OffsetDestination, set), pass)
	for _, routed := range f.routed { // nodes use their pool addresses
		to, nodes := inRouted(nft.OffsetDestination, routed, true),
			nft.InPrefix(nft.OffsetSource, f.config.Pool.Prefix, true)
		for _, from := range []nft.Rule{inRouted(nft.OffsetSource, routed, true), nodes} {
			add(nft.FromGroup(pool.GroupTunnel), to, from, pass)
		}
	}
	for _, number := range []uint32{pool.GroupTunnel, pool.GroupHold} {
		add(nft.FromGroup(number), nft.InState(expr.CtStateBitUNTRACKED), pass)
		into := nft.Group(expr.MetaKeyOIFGROUP, number)
		for _, in := range ins {
			add(into, in, belongs, pass)
			add(into, in, nft.Translated(), pass)
		}
		for _, out := range outs {
			add(into, out, pass)
		}
	}
	add(nft.AddressIn(nft.OffsetDestination, set), nft.InState(expr.CtStateBitUNTRACKED), pass)
}

// bridgedSource keeps engines from translating the source of packets that go to another node or to a hold,
// as engines do with all packets that leave their bridges. It first translates the source to itself, so the
// engines' rules are not consulted. The same applies to an untranslated connection whose ingress mark was
// restored: see SaveConntrack.
func (f *Filter) bridgedSource(conn *nftables.Conn, table *nftables.Table, set *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "bridged-source", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 1)})
	add := nft.Adder(conn, table, chain)
	same := nft.Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: nft.OffsetSource, Len: 4},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: unix.NFT_REG_1})
	for _, number := range []uint32{pool.GroupTunnel, pool.GroupHold} {
		for _, offset := range []uint32{nft.OffsetSource, nft.OffsetDestination} {
			for _, packets := range f.bridgedAlternatives(offset, nft.AddressIn(offset, set)) {
				add(nft.Group(expr.MetaKeyOIFGROUP, number), packets, same)
			}
		}
	}
	for _, packets := range f.bridgedAlternatives(nft.OffsetSource, nft.AddressIn(nft.OffsetSource, set)) {
		add(packets, nft.HasIngressMark(), same)
	}
}

// loopback is the range of addresses by which a node reaches itself.
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// bridgedPorts redirects the published ports of containers that have left to where the containers are. It
// drops what would open a connection of a container whose engine is about to delete the conntrack entries:
// the entry of such a connection would be deleted, too, and nobody has saved it. Then the engine would
// masquerade the next packet of the connection. The dropped packet is sent again.
func (f *Filter) bridgedPorts(conn *nftables.Conn, table *nftables.Table) {
	closed := nft.Adder(conn, table,
		conn.AddChain(&nftables.Chain{Name: "bridged-closing", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}))
	var open []func(parts ...nft.Rule)
	for name, hook := range map[string]*nftables.ChainHook{"bridged-ports": nftables.ChainHookPrerouting,
		"bridged-own": nftables.ChainHookOutput} {
		open = append(open, nft.Adder(conn, table,
			conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT,
				Hooknum: hook, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 1)})))
	}
	for _, one := range f.bridged {
		if one.Closing {
			for _, offset := range []uint32{nft.OffsetSource, nft.OffsetDestination} {
				closed(nft.IsAddress(offset, one.Address), nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq),
					nft.OpensConnection(), nft.Drop())
			}
		}
		for _, port := range one.Ports {
			if one.Closing && port.Protocol == "tcp" {
				closed(toPublished(port), nft.OpensConnection(), nft.Drop())
			}
			if one.Here || one.Via == 0 || port.Host.IsLoopback() {
				continue
			}
			for _, add := range open { // no other node can answer a loopback source
				add(toPublished(port), nft.InPrefix(nft.OffsetDestination, loopback, false),
					nft.Exprs(&expr.Immediate{Register: unix.NFT_REG_1, Data: one.Address.AsSlice()},
						&expr.Immediate{Register: unix.NFT_REG_2, Data: BigEndian(port.ContainerPort)},
						&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4,
							RegAddrMin: unix.NFT_REG_1, RegProtoMin: unix.NFT_REG_2}))
			}
		}
	}
}

// toPublished matches packets to a published port of this node.
func toPublished(port Published) nft.Rule {
	number := byte(unix.IPPROTO_TCP)
	if port.Protocol == "udp" {
		number = unix.IPPROTO_UDP
	}
	at := nft.Exprs(&expr.Fib{Register: unix.NFT_REG_1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: nft.Native(unix.RTN_LOCAL)})
	if port.Host.IsValid() && !port.Host.IsUnspecified() {
		at = nft.IsAddress(nft.OffsetDestination, port.Host)
	}
	return nft.Join(nft.Protocol(number, expr.CmpOpEq), at, nft.ToPort(int(port.HostPort)))
}

// BigEndian returns a port as it is in a packet.
func BigEndian(port uint16) []byte { return []byte{byte(port >> 8), byte(port)} }

// inRouted matches packets in which the address at this offset is in a routed network, or is not.
func inRouted(offset uint32, routed netip.Prefix, within bool) nft.Rule {
	return nft.InPrefix(offset, routed, within)
}

// bridgedAlternatives returns alternative rules: a packet passes one of them if its address is that of a
// container on a bridge.
func (f *Filter) bridgedAlternatives(offset uint32, set nft.Rule) []nft.Rule {
	all := []nft.Rule{set}
	for _, routed := range f.routed {
		all = append(all, inRouted(offset, routed, true))
	}
	return all
}
