package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Connections that came in by a published port, or went out masqueraded, live in this node's connection tracking: it knows how their
// addresses are translated. An engine that removes a container has all of that forgotten (libnetwork's clearEndpointConnections).
// So what is there when a container has left is written down, packet by packet of what there can be, in two maps of a table of
// their own, which outlives the agent; the packet filter translates by them, and tracks nothing of it.

// flowTable of the packet filter, and its maps.
const (
	flowTable = "godwit-flows"
	mapTo     = "to"   // a packet as it comes: where it is to go
	mapFrom   = "from" // a packet with its new destination: from where it is to be
)

// flowBatch bounds the elements in one message (a netlink attribute has 64 KiB at most).
const flowBatch = 400

// Registers: a key of five words, and what is found for it.
const (
	registerKey   = unix.NFT_REG32_00
	registerFound = unix.NFT_REG32_00 + 8
)

// packetKind are the addresses of a packet.
type packetKind struct {
	protocol uint8
	from, to netip.AddrPort
}

// key in the maps: each part fills words.
func (p packetKind) key() []byte {
	return slices.Concat([]byte{p.protocol, 0, 0, 0}, endpointKey(p.from), endpointKey(p.to))
}

func endpointKey(at netip.AddrPort) []byte {
	port := binary.BigEndian.AppendUint16(nil, at.Port())
	return slices.Concat(at.Addr().AsSlice(), port, []byte{0, 0})
}

// KeepFlows writes down the connections of a container on a bridge that were translated here, and lets no new one in by its published
// ports, until Detach. It is called before its engine removes it.
func (n *Network) KeepFlows(ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.bridged[ip]
	if one == nil {
		return nil
	}
	one.closing = true
	if err := n.applyFirewall(); err != nil {
		return err
	}
	handle, err := netlink.NewHandleAt(n.ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer handle.Close()
	tracked, err := handle.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list the connections that this node tracks: %w", err)
	}
	to, from := flowElements(tracked, ip)
	if len(to) == 0 {
		return nil
	}
	if err := n.addFlows(to, from); err != nil {
		return fmt.Errorf("keep the connections of %s: %w", ip, err)
	}
	return nil
}

// flowElements are the elements of both maps for those flows of an address that are translated.
func flowElements(tracked []*netlink.ConntrackFlow, ip netip.Addr) (to, from []nftables.SetElement) {
	for _, flow := range tracked {
		forward, there := packetOf(flow.Forward)
		reverse, back := packetOf(flow.Reverse)
		concerns := ip == forward.from.Addr() || ip == reverse.from.Addr() || ip == reverse.to.Addr()
		translated := forward.from != reverse.to || forward.to != reverse.from
		if !there || !back || !concerns || !translated {
			continue
		}
		for _, way := range [][2]packetKind{
			{forward, {forward.protocol, reverse.to, reverse.from}}, {reverse, {forward.protocol, forward.to, forward.from}},
		} {
			comes, goes := way[0], way[1]
			to = append(to, nftables.SetElement{Key: comes.key(), Val: endpointKey(goes.to)})
			if comes.from != goes.from {
				between := packetKind{comes.protocol, comes.from, goes.to}
				from = append(from, nftables.SetElement{Key: between.key(), Val: endpointKey(goes.from)})
			}
		}
	}
	return to, from
}

// packetOf is how packets of one direction of a flow look. Only what has ports is translated port by port.
func packetOf(tuple netlink.IPTuple) (packetKind, bool) {
	from, ok := netip.AddrFromSlice(tuple.SrcIP.To4())
	to, okTo := netip.AddrFromSlice(tuple.DstIP.To4())
	known := tuple.Protocol == unix.IPPROTO_TCP || tuple.Protocol == unix.IPPROTO_UDP
	return packetKind{
		protocol: tuple.Protocol, from: netip.AddrPortFrom(from, tuple.SrcPort), to: netip.AddrPortFrom(to, tuple.DstPort),
	}, ok && okTo && known
}

// flowMaps describes the two maps.
func flowMaps(table *nftables.Table) (to, from *nftables.Set, err error) {
	key, err := nftables.ConcatSetType(nftables.TypeInetProto, nftables.TypeIPAddr, nftables.TypeInetService, nftables.TypeIPAddr, nftables.TypeInetService)
	if err != nil {
		return nil, nil, fmt.Errorf("describe the maps of connections: %w", err)
	}
	data, err := nftables.ConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	if err != nil {
		return nil, nil, fmt.Errorf("describe the maps of connections: %w", err)
	}
	describe := func(name string) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, IsMap: true, KeyType: key, DataType: data, Concatenation: true}
	}
	return describe(mapTo), describe(mapFrom), nil
}

// addFlows adds elements, and makes the table when there is none yet. What was there for a packet is replaced.
func (n *Network) addFlows(to, from []nftables.SetElement) error {
	conn, err := n.filter()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: flowTable, Family: nftables.TableFamilyIPv4}
	maps := [2]*nftables.Set{}
	if maps[0], maps[1], err = flowMaps(table); err != nil {
		return err
	}
	there, err := n.hasFlows(conn)
	if err != nil {
		return err
	}
	if !there {
		if err := n.makeFlows(conn, table, maps); err != nil {
			return err
		}
	}
	// Sources first: a packet that has its new destination from here is not translated by anybody else, and would be seen with its old
	// source by who answers that with a reset.
	for _, part := range []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{{maps[1], from}, {maps[0], to}} {
		if there {
			if part.elements, err = replaceFlows(conn, part.set, part.elements); err != nil {
				return err
			}
		}
		for batch := range slices.Chunk(part.elements, flowBatch) {
			if err := conn.SetAddElements(part.set, batch); err != nil {
				return err
			}
			if err := conn.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceFlows removes what says something else of the same packets, and returns the elements that are not there.
func replaceFlows(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) (missing []nftables.SetElement, err error) {
	wanted, same := map[string]string{}, map[string]bool{}
	for _, e := range elements {
		wanted[string(e.Key)] = string(e.Val)
	}
	err = removeElements(conn, set, func(e nftables.SetElement) bool {
		value, is := wanted[string(e.Key)]
		same[string(e.Key)] = is && value == string(e.Val)
		return is && value != string(e.Val)
	})
	return slices.DeleteFunc(elements, func(e nftables.SetElement) bool { return same[string(e.Key)] }), err
}

// hasFlows tells whether there is a table of connections.
func (n *Network) hasFlows(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == flowTable }), err
}

// makeFlows makes the table. A packet gets its new destination before it is routed, and its new source after: with the node's own
// address as source it would not be forwarded.
func (n *Network) makeFlows(conn *nftables.Conn, table *nftables.Table, maps [2]*nftables.Set) error {
	conn.AddTable(table)
	for _, set := range maps {
		if err := conn.AddSet(set, nil); err != nil {
			return err
		}
	}
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) func(parts ...rule) {
		return ruleAdder(conn, table, conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: priority}))
	}
	before := []func(parts ...rule){
		chain("arrive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw),
		chain("own", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityRaw),
	}
	after := []func(parts ...rule){
		chain("leave", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, nftables.ChainPriorityMangle),
		chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityMangle),
	}
	for number, checksum := range map[byte]uint32{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6} {
		for _, add := range before {
			add(protocol(number, expr.CmpOpEq), findFlow(maps[0]), mayFragment(), rewrite(offsetDestination, offsetPort, checksum), is(&expr.Notrack{}))
		}
		for _, add := range after {
			add(protocol(number, expr.CmpOpEq), findFlow(maps[1]), rewrite(offsetSource, 0, checksum))
		}
	}
	return conn.Flush()
}

// findFlow looks the packet up.
func findFlow(set *nftables.Set) rule {
	load := func(register, base, offset, length uint32) *expr.Payload {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBase(base), Offset: offset, Len: length}
	}
	return is(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: registerKey},
		load(registerKey+1, unix.NFT_PAYLOAD_NETWORK_HEADER, offsetSource, 4),
		load(registerKey+2, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2),
		load(registerKey+3, unix.NFT_PAYLOAD_NETWORK_HEADER, offsetDestination, 4),
		load(registerKey+4, unix.NFT_PAYLOAD_TRANSPORT_HEADER, offsetPort, 2),
		&expr.Lookup{SourceRegister: registerKey, DestRegister: registerFound, IsDestRegSet: true, SetName: set.Name, SetID: set.ID},
	)
}

// Where checksums of IPv4 are, and its flags.
const (
	offsetFlags    = 6
	offsetChecksum = 10
	dontFragment   = 0x40
)

// rewrite puts what was found in the place of an address and its port.
func rewrite(address, port, checksum uint32) rule {
	return is(
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: registerFound, Base: expr.PayloadBaseNetworkHeader, Offset: address,
			Len: 4, CsumType: expr.CsumTypeInet, CsumOffset: offsetChecksum, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: registerFound + 1, Base: expr.PayloadBaseTransportHeader, Offset: port,
			Len: 2, CsumType: expr.CsumTypeInet, CsumOffset: checksum},
	)
}

// mayFragment lets the packet be fragmented. The way to another node takes less than the connection was told when it began; who sends
// would not understand that, because of what it is told it knows neither address.
func mayFragment() rule {
	return is(
		&expr.Payload{DestRegister: registerKey, Base: expr.PayloadBaseNetworkHeader, Offset: offsetFlags, Len: 2},
		&expr.Bitwise{SourceRegister: registerKey, DestRegister: registerKey, Len: 2, Mask: []byte{0xff &^ dontFragment, 0xff}, Xor: []byte{0, 0}},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: registerKey, Base: expr.PayloadBaseNetworkHeader, Offset: offsetFlags,
			Len: 2, CsumType: expr.CsumTypeInet, CsumOffset: offsetChecksum},
	)
}

// forgetFlows removes what was written down for an address, and the table when there is no container any more for which it is needed.
func (n *Network) forgetFlows(ip netip.Addr) error {
	conn, err := n.filter()
	if err != nil {
		return err
	}
	there, err := n.hasFlows(conn)
	if err != nil || !there {
		return err
	}
	table := &nftables.Table{Name: flowTable, Family: nftables.TableFamilyIPv4}
	if len(n.bridged) == 0 {
		conn.DelTable(table)
		return conn.Flush()
	}
	to, from, err := flowMaps(table)
	if err != nil {
		return err
	}
	return errors.Join(removeElements(conn, to, concerns(ip)), removeElements(conn, from, concerns(ip)))
}

// removeElements removes those of a map that match.
func removeElements(conn *nftables.Conn, set *nftables.Set, match func(nftables.SetElement) bool) error {
	all, err := conn.GetSetElements(set)
	if err != nil {
		return fmt.Errorf("list the connections that are kept: %w", err)
	}
	gone := slices.DeleteFunc(all, func(e nftables.SetElement) bool { return !match(e) })
	for batch := range slices.Chunk(gone, flowBatch) {
		if err := conn.SetDeleteElements(set, batch); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove connections that were kept: %w", err)
		}
	}
	return nil
}

// concerns matches elements in which an address is.
func concerns(ip netip.Addr) func(nftables.SetElement) bool {
	has := func(data []byte, at int) bool {
		return len(data) >= at+4 && net.IP(data[at:at+4]).Equal(ip.AsSlice())
	}
	return func(e nftables.SetElement) bool { return has(e.Key, 4) || has(e.Key, 12) || has(e.Val, 0) }
}
