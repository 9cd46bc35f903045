package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is the name of our tables in the packet filter. Other programs' tables are not touched.
const tableName = "godwit"

// Names of the sets that change while containers come and go.
const (
	setContainers = "containers" // device and source address of each container that is plugged in
	setHere       = "here"       // addresses of those containers
	// source address of the outer packet and source hardware address of the inner one, for each peer
	setEnds  = "ends"
	setPeers = "peers" // underlay addresses of the peers
)

// applyFirewall replaces our tables in one transaction, to match the current peers and containers.
func (n *Network) applyFirewall() error {
	conn, err := n.filter()
	if err != nil {
		return err
	}
	table := newTable(conn, nftables.TableFamilyIPv4)
	containers, err := containerSet(table)
	if err != nil {
		return err
	}
	if err := conn.AddSet(containers, n.pluggedIn()); err != nil {
		return fmt.Errorf("describe the set of containers: %w", err)
	}
	here := hereSet(table)
	if err := conn.AddSet(here, n.pluggedInAddresses()); err != nil {
		return fmt.Errorf("describe the set of containers: %w", err)
	}
	bridged := bridgedSet(table)
	if err := conn.AddSet(bridged, n.bridgedElements()); err != nil {
		return fmt.Errorf("describe the set of containers on bridges: %w", err)
	}
	inside := n.insideChain(conn, table, bridged)
	n.arriveChain(conn, table, containers)
	n.ingressChain(conn, table, here, inside)
	n.outputChain(conn, table)
	n.leaveChain(conn, table)
	n.lateChain(conn, table)
	n.forwardChain(conn, table, bridged)
	n.bridgedRules(conn, table, bridged, inside)
	outer := table
	if n.config.Underlay.Is6() {
		outer = newTable(conn, nftables.TableFamilyIPv6)
	}
	if err := n.overlayRules(conn, table, outer, bridged); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("replace table %s of the packet filter: %w; does the kernel have nf_tables with "+
			"ct and masquerade?", tableName, err)
	}
	return nil
}

// newTable describes an empty table that replaces any existing one: adding first makes deleting succeed.
func newTable(conn *nftables.Conn, family nftables.TableFamily) *nftables.Table {
	table := &nftables.Table{Name: tableName, Family: family}
	conn.AddTable(table)
	conn.DelTable(table)
	return conn.AddTable(table)
}

// filter opens the packet filter of our namespace.
func (n *Network) filter() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(n.ns)))
	if err != nil {
		return nil, fmt.Errorf("open the packet filter: %w", err)
	}
	return conn, nil
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

// pluggedInAddresses lists the addresses of the containers that may send.
func (n *Network) pluggedInAddresses() []nftables.SetElement {
	var elements []nftables.SetElement
	for _, attached := range n.containers {
		if attached.plugged && !attached.bridged {
			elements = append(elements, nftables.SetElement{Key: attached.address.IP.AsSlice()})
		}
	}
	return elements
}

// pluggedIn lists the containers that may send.
func (n *Network) pluggedIn() []nftables.SetElement {
	var elements []nftables.SetElement
	for _, attached := range n.containers {
		if attached.plugged && !attached.bridged {
			elements = append(elements, containerElement(attached.device, attached.address.IP))
		}
	}
	return elements
}

// allow lets a container send, or stops it from sending.
func (n *Network) allow(attached *attachment, yes bool) error {
	if attached.plugged == yes || attached.bridged {
		return nil
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(n.ns)), nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("open the packet filter: %w", err)
	}
	defer closeLater(conn)
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4}
	set, err := containerSet(table)
	if err != nil {
		return err
	}
	element := []nftables.SetElement{containerElement(attached.device, attached.address.IP)}
	change := conn.SetAddElements
	if !yes {
		change = conn.SetDeleteElements
	}
	err = errors.Join(change(set, element),
		change(hereSet(table), []nftables.SetElement{{Key: attached.address.IP.AsSlice()}}))
	if err == nil {
		err = conn.Flush()
	}
	if err != nil && !(errors.Is(err, os.ErrNotExist) && !yes) {
		return fmt.Errorf("let device %s send as %s (%t): %w", attached.device, attached.address.IP, yes, err)
	}
	attached.plugged = yes
	return nil
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
func (n *Network) arriveChain(conn *nftables.Conn, table *nftables.Table, containers *nftables.Set) {
	chain := conn.AddChain(&nftables.Chain{Name: "arrive", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	add := ruleAdder(conn, table, chain)
	add(fromGroup(groupHold), is(&expr.Notrack{}))
	add(fromGroup(groupContainer), is(
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Payload{DestRegister: unix.NFT_REG_2, Base: expr.PayloadBaseNetworkHeader, Offset: offsetSource,
			Len: 4},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: containers.Name, SetID: containers.ID,
			Invert: true},
	), drop())
}

// ingressChain comes after connection tracking and before routing: it sets the ingress mark of a connection,
// and marks answers with it.
//
// Packets forwarded by a hold come in from the peer that held them, which may have received them from this
// node. The answer then comes back from that peer: an answer of one of our own containers that comes out of
// the tunnel leaves by our own interfaces.
func (n *Network) ingressChain(
	conn *nftables.Conn, table *nftables.Table, here *nftables.Set, inside func(add func(...rule)),
) {
	chain := conn.AddChain(&nftables.Chain{Name: "doors", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 1)})
	add := ruleAdder(conn, table, chain)
	inside(add)
	in := join(inPool(offsetDestination, n.config.Pool, true), inPool(offsetSource, n.config.Pool, false))
	out := join(inPool(offsetSource, n.config.Pool, true), inPool(offsetDestination, n.config.Pool, false))
	for number := range n.peers {
		add(fromGroup(groupTunnel), in, fromEthernet(tunnelMAC(number)), setIngressMark(number))
	}
	add(notGroups(expr.MetaKeyIIFGROUP), in, setIngressMark(n.config.NodeNumber))
	add(fromGroup(groupContainer), out, useIngressMark())
	ours := is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: offsetSource, Len: 4},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: here.Name, SetID: here.ID})
	add(fromGroup(groupTunnel), out, ours, markWith(n.config.NodeNumber), accept())
	add(fromGroup(groupTunnel), out, useIngressMark())
	// With the mark, the route lookup for the tunnel's own packets would lead into the tunnel again.
	routed := conn.AddChain(&nftables.Chain{Name: "routed", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityMangle})
	ruleAdder(conn, table, routed)(group(expr.MetaKeyOIFGROUP, groupTunnel), clearMark())
}

// insideChain returns the rules that keep packets between two addresses with known routes out of the chain
// of ingress marks. These packets need no mark. Both ends may move, so a node that remembered a mark would
// send packets back to where they came from, and the next node would do the same. A container of the pool
// that is away from home sends unmarked packets home; these rules make its packets take the routes.
func (n *Network) insideChain(conn *nftables.Conn, table *nftables.Table,
	bridged *nftables.Set) (inside func(add func(...rule))) {
	onBridges := func(offset uint32) []rule {
		return n.bridgedAlternatives(offset,
			isBridged(offset, bridged))
	}
	pooled := func(offset uint32) rule { return inPool(offset, n.config.Pool, true) }
	const name = "inside"
	chain := ruleAdder(conn, table, conn.AddChain(&nftables.Chain{Name: name, Table: table}))
	for _, to := range onBridges(offsetDestination) {
		chain(to, pooled(offsetSource), markWith(n.config.NodeNumber), accept())
		chain(to, accept())
	}
	chain(pooled(offsetDestination), accept())
	return func(add func(...rule)) {
		for _, from := range append(onBridges(offsetSource), pooled(offsetSource)) {
			add(from, is(&expr.Verdict{Kind: expr.VerdictJump, Chain: name}))
		}
	}
}

// outputChain keeps the kernel from telling senders to go to another node directly (ICMP redirect): a home
// forwards from tunnel to tunnel, and its clients cannot follow.
func (n *Network) outputChain(conn *nftables.Conn, table *nftables.Table) {
	chain := conn.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
	add := ruleAdder(conn, table, chain)
	add(group(expr.MetaKeyOIFGROUP, groupTunnel), protocol(unix.IPPROTO_ICMP, expr.CmpOpEq),
		icmpType(icmpRedirect), drop())
}

// leaveChain gives connections that this node's containers open to the outside the node's address. For TCP
// only packets that open a connection count; see the package comment.
func (n *Network) leaveChain(conn *nftables.Conn, table *nftables.Table) {
	chain := conn.AddChain(&nftables.Chain{Name: "leave", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	add := ruleAdder(conn, table, chain)
	out := join(inPool(offsetSource, n.config.subnet(n.config.NodeNumber), true),
		inPool(offsetDestination, n.config.Pool, false), notGroups(expr.MetaKeyOIFGROUP))
	add(out, protocol(unix.IPPROTO_TCP, expr.CmpOpEq), opensConnection(), is(&expr.Masq{}))
	add(out, protocol(unix.IPPROTO_TCP, expr.CmpOpNeq), is(&expr.Masq{}))
}

// lateChain comes after source translation. Packets held by another node come out of the tunnel when their
// container has come home. If this home masquerades their connection, they were translated before they were
// held. So connection tracking takes them for another connection with the same answers, and gives them
// another port, to which the container would answer with a reset. lateChain restores the original port.
func (n *Network) lateChain(conn *nftables.Conn, table *nftables.Table) {
	chain := conn.AddChain(&nftables.Chain{Name: "late", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource + 1)})
	add := ruleAdder(conn, table, chain)
	late := join(fromGroup(groupTunnel), inPool(offsetDestination, n.config.subnet(n.config.NodeNumber),
		true), inPool(offsetSource, n.config.Pool, false))
	add(protocol(unix.IPPROTO_TCP, expr.CmpOpEq), late, originalSourcePort(checksumTCP))
	add(protocol(unix.IPPROTO_UDP, expr.CmpOpEq), late, hasChecksum(true), originalSourcePort(checksumUDP))
	add(protocol(unix.IPPROTO_UDP, expr.CmpOpEq), late, hasChecksum(false), originalSourcePort(noChecksum))
}

// removeFirewall removes our tables.
func (n *Network) removeFirewall() error {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		conn, err := n.filter()
		if err != nil {
			return err
		}
		conn.DelTable(&nftables.Table{Name: tableName, Family: family})
		if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove table %s of the packet filter: %w", tableName, err)
		}
	}
	return nil
}
