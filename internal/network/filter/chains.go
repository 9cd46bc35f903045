package filter

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// Names of the sets that change while containers come and go.
const (
	setContainers = "containers" // device and source address of each container that is plugged in
	setHere       = "here"       // addresses of those containers
	// source address of the outer packet and source hardware address of the inner one, for each peer
	setEnds  = "ends"
	setPeers = "peers" // underlay addresses of the peers
)

// apply replaces our tables in one transaction, to match the current peers and containers.
func (f *Filter) apply() error {
	conn, err := nft.Open(f.config.Namespace)
	if err != nil {
		return err
	}
	table := nft.NewTable(conn, nftables.TableFamilyIPv4)
	containers, err := containerSet(table)
	if err != nil {
		return err
	}
	if err := conn.AddSet(containers, f.allowed()); err != nil {
		return fmt.Errorf("describe the set of containers: %w", err)
	}
	here := hereSet(table)
	if err := conn.AddSet(here, f.allowedAddresses()); err != nil {
		return fmt.Errorf("describe the set of containers: %w", err)
	}
	bridged := bridgedSet(table)
	if err := conn.AddSet(bridged, f.bridgedElements()); err != nil {
		return fmt.Errorf("describe the set of containers on bridges: %w", err)
	}
	inside := f.insideChain(conn, table, bridged)
	f.arriveChain(conn, table, containers)
	f.ingressChain(conn, table, here, inside)
	f.outputChain(conn, table)
	f.leaveChain(conn, table)
	f.lateChain(conn, table)
	f.forwardChain(conn, table, bridged)
	f.bridgedRules(conn, table, bridged, inside)
	outer := table
	if f.config.Underlay.Is6() {
		outer = nft.NewTable(conn, nftables.TableFamilyIPv6)
	}
	if err := f.overlayRules(conn, table, outer, bridged); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("replace table %s of the packet filter: %w; does the kernel have nf_tables with "+
			"ct and masquerade?", nft.TableName, err)
	}
	return nil
}

// containerSet describes the set of allowed pairs of device and source address.
func containerSet(table *nftables.Table) (*nftables.Set, error) {
	key, err := nftables.ConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
	if err != nil {
		return nil, fmt.Errorf("describe the set of containers: %w", err)
	}
	return &nftables.Set{Table: table, Name: setContainers, KeyType: key, Concatenation: true}, nil
}

// hereSet describes the set of the addresses of plugged-in containers.
func hereSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: setHere, KeyType: nftables.TypeIPAddr}
}

// allowed lists the containers that may send.
func (f *Filter) allowed() []nftables.SetElement {
	var elements []nftables.SetElement
	for device, ip := range f.containers {
		elements = append(elements, containerElement(device, ip))
	}
	return elements
}

// allowedAddresses lists the addresses of the containers that may send.
func (f *Filter) allowedAddresses() []nftables.SetElement {
	var elements []nftables.SetElement
	for _, ip := range f.containers {
		elements = append(elements, nftables.SetElement{Key: ip.AsSlice()})
	}
	return elements
}

// containerElement is a device name, padded as the kernel pads it, and an address.
func containerElement(device string, ip netip.Addr) nftables.SetElement {
	key := make([]byte, unix.IFNAMSIZ, unix.IFNAMSIZ+4)
	copy(key, device)
	bytes := ip.As4()
	return nftables.SetElement{Key: append(key, bytes[:]...)}
}

// arriveChain comes before connection tracking. Packets from a hold were tracked when they first came in.
// Tracking them again would count a copy or, if their addresses were translated, see another connection.
// Packets from a container must have its own address, and are accepted only while it is plugged in.
func (f *Filter) arriveChain(conn *nftables.Conn, table *nftables.Table, containers *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "arrive", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	add := nft.Adder(conn, table, chain)
	add(nft.FromGroup(pool.GroupHold), nft.Exprs(&expr.Notrack{}))
	add(nft.FromGroup(pool.GroupContainer), nft.Exprs(
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Payload{DestRegister: unix.NFT_REG_2, Base: expr.PayloadBaseNetworkHeader,
			Offset: nft.OffsetSource,
			Len:    4},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: containers.Name, SetID: containers.ID,
			Invert: true},
	), nft.Drop())
}

// ingressChain comes after connection tracking and before routing: it sets the ingress mark of a connection,
// and marks answers with it.
//
// Packets forwarded by a hold come in from the peer that held them, which may have received them from this
// node. The answer then comes back from that peer: an answer of one of our own containers that comes out of
// the tunnel leaves by our own interfaces.
func (f *Filter) ingressChain(
	conn *nftables.Conn, table *nftables.Table, here *nftables.Set, inside func(add func(...nft.Rule)),
) {
	chain := conn.AddChain(&nftables.Chain{Name: "doors", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 1)})
	add := nft.Adder(conn, table, chain)
	inside(add)
	in := nft.Join(nft.InPrefix(nft.OffsetDestination, f.config.Pool.Prefix, true),
		nft.InPrefix(nft.OffsetSource, f.config.Pool.Prefix, false))
	out := nft.Join(nft.InPrefix(nft.OffsetSource, f.config.Pool.Prefix, true),
		nft.InPrefix(nft.OffsetDestination, f.config.Pool.Prefix, false))
	for number := range f.peers {
		add(nft.FromGroup(pool.GroupTunnel), in, nft.FromEthernet(pool.TunnelMAC(number)),
			nft.SetIngressMark(number))
	}
	add(nft.NotGroups(expr.MetaKeyIIFGROUP), in, nft.SetIngressMark(f.config.Pool.Number))
	add(nft.FromGroup(pool.GroupContainer), out, nft.UseIngressMark())
	ours := nft.Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: nft.OffsetSource, Len: 4},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: here.Name, SetID: here.ID})
	add(nft.FromGroup(pool.GroupTunnel), out, ours, nft.MarkWith(f.config.Pool.Number), nft.Accept())
	add(nft.FromGroup(pool.GroupTunnel), out, nft.UseIngressMark())
	// With the mark, the route lookup for the tunnel's own packets would lead into the tunnel again.
	routed := conn.AddChain(&nftables.Chain{Name: "routed", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityMangle})
	nft.Adder(conn, table, routed)(nft.Group(expr.MetaKeyOIFGROUP, pool.GroupTunnel), nft.ClearMark())
}

// insideChain returns the rules that keep packets between two addresses with known routes out of the chain
// of ingress marks. These packets need no mark. Both ends may move, so a node that remembered a mark would
// send packets back to where they came from, and the next node would do the same. A container of the pool
// that is away from home sends unmarked packets home; these rules make its packets take the routes.
func (f *Filter) insideChain(conn *nftables.Conn, table *nftables.Table,
	bridged *nftables.Set) (inside func(add func(...nft.Rule))) {
	onBridges := func(offset uint32) []nft.Rule {
		return f.bridgedAlternatives(offset,
			nft.AddressIn(offset, bridged))
	}
	pooled := func(offset uint32) nft.Rule { return nft.InPrefix(offset, f.config.Pool.Prefix, true) }
	const name = "inside"
	chain := nft.Adder(conn, table, conn.AddChain(&nftables.Chain{Name: name, Table: table}))
	for _, to := range onBridges(nft.OffsetDestination) {
		chain(to, pooled(nft.OffsetSource), nft.MarkWith(f.config.Pool.Number), nft.Accept())
		chain(to, nft.Accept())
	}
	chain(pooled(nft.OffsetDestination), nft.Accept())
	return func(add func(...nft.Rule)) {
		for _, from := range append(onBridges(nft.OffsetSource), pooled(nft.OffsetSource)) {
			add(from, nft.Exprs(&expr.Verdict{Kind: expr.VerdictJump, Chain: name}))
		}
	}
}

// outputChain keeps the kernel from telling senders to go to another node directly (ICMP redirect): a home
// forwards from tunnel to tunnel, and its clients cannot follow.
func (f *Filter) outputChain(conn *nftables.Conn, table *nftables.Table) {
	chain := conn.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
	add := nft.Adder(conn, table, chain)
	add(nft.Group(expr.MetaKeyOIFGROUP, pool.GroupTunnel), nft.Protocol(unix.IPPROTO_ICMP, expr.CmpOpEq),
		nft.ICMPType(nft.ICMPRedirect), nft.Drop())
}

// leaveChain gives connections that this node's containers open to the outside the node's address. For TCP
// only packets that open a connection count; see the comment of package network.
func (f *Filter) leaveChain(conn *nftables.Conn, table *nftables.Table) {
	chain := conn.AddChain(&nftables.Chain{Name: "leave", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	add := nft.Adder(conn, table, chain)
	out := nft.Join(nft.InPrefix(nft.OffsetSource, f.config.Pool.Own(), true),
		nft.InPrefix(nft.OffsetDestination, f.config.Pool.Prefix, false), nft.NotGroups(expr.MetaKeyOIFGROUP))
	add(out, nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq), nft.OpensConnection(), nft.Exprs(&expr.Masq{}))
	add(out, nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpNeq), nft.Exprs(&expr.Masq{}))
}

// lateChain comes after source translation. Packets held by another node come out of the tunnel when their
// container has come home. If this home masquerades their connection, they were translated before they were
// held. So connection tracking takes them for another connection with the same answers, and gives them
// another port, to which the container would answer with a reset. lateChain restores the original port.
func (f *Filter) lateChain(conn *nftables.Conn, table *nftables.Table) {
	chain := conn.AddChain(&nftables.Chain{Name: "late", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource + 1)})
	add := nft.Adder(conn, table, chain)
	late := nft.Join(nft.FromGroup(pool.GroupTunnel), nft.InPrefix(nft.OffsetDestination, f.config.Pool.Own(),
		true), nft.InPrefix(nft.OffsetSource, f.config.Pool.Prefix, false))
	add(nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq), late, nft.OriginalSourcePort(nft.ChecksumTCP))
	add(nft.Protocol(unix.IPPROTO_UDP, expr.CmpOpEq), late, nft.HasChecksum(true),
		nft.OriginalSourcePort(nft.ChecksumUDP))
	add(nft.Protocol(unix.IPPROTO_UDP, expr.CmpOpEq), late, nft.HasChecksum(false),
		nft.OriginalSourcePort(nft.NoChecksum))
}
