package network

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// setBridged names the set of the addresses of recorded containers on bridges.
const setBridged = "bridged"

// passMark marks packets to and from containers on bridges that are forwarded because their own node has
// let them in before. If another program's chain drops unknown packets, that chain has the last word;
// Docker asks a chain for other programs' rules before its own.
const (
	passMark  = 1 << 28
	passChain = "DOCKER-USER"
)

// bridgedRules returns the rules for containers on bridges. They do for these containers what other rules
// do for the pool: see the package comment.
func (n *Network) bridgedRules(conn *nftables.Conn, table *nftables.Table, set *nftables.Set,
	inside func(add func(...rule))) {
	if len(n.bridged)+len(n.routed) == 0 {
		return
	}
	n.bridgedIngress(conn, table, set, inside)
	n.bridgedPass(conn, table, set)
	n.bridgedSource(conn, table, set)
	n.bridgedPorts(conn, table)
}

// bridgedSet describes the set of the addresses of containers on bridges.
func bridgedSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: setBridged, KeyType: nftables.TypeIPAddr}
}

func (n *Network) bridgedElements() []nftables.SetElement {
	var elements []nftables.SetElement
	for ip := range n.bridged {
		elements = append(elements, nftables.SetElement{Key: ip.AsSlice()})
	}
	return elements
}

// isBridged matches packets in which the address at this offset belongs to a container on a bridge.
func isBridged(offset uint32, set *nftables.Set) rule {
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: 4}, &expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID})
}

// isAddress matches packets with this address at this offset.
func isAddress(offset uint32, ip netip.Addr) rule {
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: 4}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: ip.AsSlice()})
}

// bridgedIngress sets the ingress mark of each connection to a container on a bridge. If a connection is
// older than the container's arrival and none of its packets has come in here, its packets go to the node
// from which the container came: only a SYN opens a connection.
func (n *Network) bridgedIngress(
	conn *nftables.Conn, table *nftables.Table, set *nftables.Set, inside func(add func(...rule)),
) {
	chain := conn.AddChain(&nftables.Chain{Name: "bridged-doors", Table: table,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 2)})
	add := ruleAdder(conn, table, chain)
	inside(add)
	in, out := isBridged(offsetDestination, set), isBridged(offsetSource, set)
	for number := range n.peers {
		add(fromGroup(groupTunnel), in, fromEthernet(tunnelMAC(number)), setIngressMark(number))
	}
	add(notGroups(expr.MetaKeyIIFGROUP), in, setIngressMark(n.config.NodeNumber))
	for _, routed := range n.routed { // from outside: within a routed network the destination decides
		in := join(inRouted(offsetDestination, routed, true), inRouted(offsetSource, routed, false))
		for number := range n.peers {
			add(fromGroup(groupTunnel), in, fromEthernet(tunnelMAC(number)), setIngressMark(number))
		}
		add(notGroups(expr.MetaKeyIIFGROUP), in, setIngressMark(n.config.NodeNumber))
	}
	for ip, one := range n.bridged {
		if one.Here && one.Via == 0 {
			add(fromGroup(groupTunnel), isAddress(offsetSource, ip), markWith(n.config.NodeNumber), accept())
		}
		if one.Origin != 0 {
			add(isAddress(offsetSource, ip), protocol(unix.IPPROTO_TCP, expr.CmpOpEq), opensNone(),
				ctState(expr.CtStateBitNEW), setIngressMark(one.Origin))
		}
	}
	add(out, useIngressMark())
	for _, routed := range n.routed {
		from, to := inRouted(offsetSource, routed, true), inRouted(offsetDestination, routed, false)
		add(from, to, useIngressMark())
	}
}

// opensNone matches TCP segments that do not open a connection.
func opensNone() rule {
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: offsetTCPFlags, Len: 1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 1,
			Mask: []byte{tcpSYN | tcpACK}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: []byte{tcpSYN}})
}

// ctState matches packets in one of these states of connection tracking.
func ctState(bits uint32) rule {
	return is(&expr.Ct{Key: expr.CtKeySTATE, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: native(0)})
}

// translated matches packets of connections whose destination was translated (IPS_DST_NAT,
// nf_conntrack_common.h).
func translated() rule {
	const destination = 1 << 5
	return is(&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: native(destination), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: native(0)})
}

// bridgedPass marks packets that may be forwarded. From the tunnel: packets to a container on a bridge,
// which the node where they came in has accepted, packets to a container in a routed network, and the
// answers to both. From holds: packets that were held. To holds and the tunnel: packets that belong to a
// connection or came to a published port. Packets of the container's neighbours are left to the engine's
// own rules.
func (n *Network) bridgedPass(conn *nftables.Conn, table *nftables.Table, set *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "bridged-pass", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 1)})
	add := ruleAdder(conn, table, chain)
	pass := is(&expr.Immediate{Register: unix.NFT_REG_1, Data: native(passMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
	ins := n.bridgedAlternatives(offsetDestination, isBridged(offsetDestination, set))
	outs := n.bridgedAlternatives(offsetSource, isBridged(offsetSource, set))
	belongs := ctState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED | expr.CtStateBitUNTRACKED)
	for _, packets := range slices.Concat(ins, outs) {
		add(fromGroup(groupHold), packets, pass)
		add(fromGroup(groupTunnel), packets, belongs, pass)
		// The packet is from the middle of a connection that this node has forgotten or never seen.
		add(fromGroup(groupTunnel), packets, protocol(unix.IPPROTO_TCP, expr.CmpOpEq), opensNone(), pass)
	}
	for _, out := range outs { // of a connection whose ingress mark was restored
		add(fromGroup(groupTunnel), out, hasIngressMark(), pass)
	}
	add(fromGroup(groupTunnel), isBridged(offsetDestination, set), pass)
	for _, routed := range n.routed { // nodes use their pool addresses
		to, pool := inRouted(offsetDestination, routed, true), inPool(offsetSource, n.config.Pool, true)
		for _, from := range []rule{inRouted(offsetSource, routed, true), pool} {
			add(fromGroup(groupTunnel), to, from, pass)
		}
	}
	for _, number := range []uint32{groupTunnel, groupHold} {
		add(fromGroup(number), ctState(expr.CtStateBitUNTRACKED), pass)
		into := group(expr.MetaKeyOIFGROUP, number)
		for _, in := range ins {
			add(into, in, belongs, pass)
			add(into, in, translated(), pass)
		}
		for _, out := range outs {
			add(into, out, pass)
		}
	}
	add(isBridged(offsetDestination, set), ctState(expr.CtStateBitUNTRACKED), pass)
}

// bridgedSource keeps engines from translating the source of packets that go to another node or to a hold,
// as engines do with all packets that leave their bridges. It first translates the source to itself, so the
// engines' rules are not consulted. The same applies to an untranslated connection whose ingress mark was
// restored: see SaveConntrack.
func (n *Network) bridgedSource(conn *nftables.Conn, table *nftables.Table, set *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "bridged-source", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 1)})
	add := ruleAdder(conn, table, chain)
	same := is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: offsetSource, Len: 4},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: unix.NFT_REG_1})
	for _, number := range []uint32{groupTunnel, groupHold} {
		for _, offset := range []uint32{offsetSource, offsetDestination} {
			for _, packets := range n.bridgedAlternatives(offset, isBridged(offset, set)) {
				add(group(expr.MetaKeyOIFGROUP, number), packets, same)
			}
		}
	}
	for _, packets := range n.bridgedAlternatives(offsetSource, isBridged(offsetSource, set)) {
		add(packets, hasIngressMark(), same)
	}
}

// loopback is the range of addresses by which a node reaches itself.
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// bridgedPorts redirects the published ports of containers that have left to where the containers are.
func (n *Network) bridgedPorts(conn *nftables.Conn, table *nftables.Table) {
	closed := ruleAdder(conn, table,
		conn.AddChain(&nftables.Chain{Name: "bridged-closing", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}))
	var open []func(parts ...rule)
	for name, hook := range map[string]*nftables.ChainHook{"bridged-ports": nftables.ChainHookPrerouting,
		"bridged-own": nftables.ChainHookOutput} {
		open = append(open, ruleAdder(conn, table,
			conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT,
				Hooknum: hook, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 1)})))
	}
	for ip, one := range n.bridged {
		for _, port := range one.Ports {
			if one.closing && port.Protocol == "tcp" {
				closed(toPublished(port), opensConnection(), drop())
			}
			if one.Here || one.Via == 0 || port.Host.IsLoopback() {
				continue
			}
			for _, add := range open { // no other node can answer a loopback source
				add(toPublished(port), inPool(offsetDestination, loopback, false),
					is(&expr.Immediate{Register: unix.NFT_REG_1, Data: ip.AsSlice()},
						&expr.Immediate{Register: unix.NFT_REG_2, Data: bigEndian(port.ContainerPort)},
						&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4,
							RegAddrMin: unix.NFT_REG_1, RegProtoMin: unix.NFT_REG_2}))
			}
		}
	}
}

// toPublished matches packets to a published port of this node.
func toPublished(port Published) rule {
	number := byte(unix.IPPROTO_TCP)
	if port.Protocol == "udp" {
		number = unix.IPPROTO_UDP
	}
	at := is(&expr.Fib{Register: unix.NFT_REG_1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: native(unix.RTN_LOCAL)})
	if port.Host.IsValid() && !port.Host.IsUnspecified() {
		at = isAddress(offsetDestination, port.Host)
	}
	return join(protocol(number, expr.CmpOpEq), at, toPort(int(port.HostPort)))
}

// conflicts reports whether a packet could match both ports.
func (p Published) conflicts(other Published) bool {
	each := func(host netip.Addr) bool { return !host.IsValid() || host.IsUnspecified() }
	return p.Protocol == other.Protocol && p.HostPort == other.HostPort &&
		(each(p.Host) || each(other.Host) || p.Host == other.Host)
}

// YieldPorts stops forwarding from ports of containers that have left if containers that are here have
// these ports now. It returns those ports.
func (n *Network) YieldPorts(taken []Published) (yielded []Published, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, one := range n.bridged {
		if one.Here {
			continue
		}
		kept := make([]Published, 0, len(one.Ports))
		for _, port := range one.Ports {
			if slices.ContainsFunc(taken, port.conflicts) {
				yielded = append(yielded, port)
			} else {
				kept = append(kept, port)
			}
		}
		one.Ports = kept
	}
	if len(yielded) == 0 {
		return nil, nil
	}
	return yielded, errors.Join(n.saveBridged(), n.applyFirewall())
}

// ForgetStrangers ends the forwarding to containers at nodes that no longer exist.
func (n *Network) ForgetStrangers(member func(number int) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for ip, one := range n.bridged {
		if !one.Here && !member(one.Via) {
			errs = append(errs, n.forgetBridged(ip))
		}
	}
	return errors.Join(errs...)
}

func bigEndian(port uint16) []byte { return []byte{byte(port >> 8), byte(port)} }
