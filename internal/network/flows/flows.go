package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// This node's connection tracking knows how to translate the addresses of connections that came in by a
// published port, or went out masqueraded. An engine that removes a container deletes these entries
// (libnetwork's clearEndpointConnections). So when a container has left, its entries are saved, one for
// each kind of packet, in two maps of a separate table, which outlives the agent. The packet filter
// translates by these maps, without tracking.
//
// The node may reuse the port of a container's outgoing connection once that connection is over. So only
// lasting connections are saved, and unused entries expire: soon, if the connection's end was seen.

// Table of the packet filter, its maps and its set.
const (
	Table    = "godwit-flows"
	mapTo    = "to"    // of a packet as it arrives: its new destination
	mapFrom  = "from"  // of a packet with its new destination: its new source
	setEnded = "ended" // packets as they arrive, in a direction with only acknowledgements left
)

const (
	flowBatch = 400     // elements in one message: a netlink attribute has 64 KiB at most
	maxFlows  = 1 << 15 // connections of one container
	flowSize  = 1 << 18 // elements of each map
)

// How long a saved connection stays after its last packet.
const (
	Idle = 124 * time.Minute // of TCP (RFC 5382, section 5): keepalives come every two hours
	Over = 2 * time.Minute   // for UDP (RFC 4787, section 4.3), and after a connection's end was announced
)

// Registers: a key of five words, and the result of its lookup.
const (
	registerKey   = unix.NFT_REG32_00
	registerFound = unix.NFT_REG32_00 + 8
)

// packetKind holds the addresses of a packet.
type packetKind struct {
	protocol uint8
	from, to netip.AddrPort
}

// key returns the packet's key in the maps; each part fills whole words.
func (p packetKind) key() []byte {
	return slices.Concat([]byte{p.protocol, 0, 0, 0}, endpointKey(p.from), endpointKey(p.to))
}

func endpointKey(at netip.AddrPort) []byte {
	port := binary.BigEndian.AppendUint16(nil, at.Port())
	return slices.Concat(at.Addr().AsSlice(), port, []byte{0, 0})
}

// Flows are the saved conntrack entries of a node. It has no state but the kernel's: its user serialises the
// calls.
type Flows struct {
	Namespace netns.NsHandle // of the node
	Number    int            // this node's
}

// Save saves the entries of a container. The packet filter restores them: see arrive, leave and makeIngress.
func (f Flows) Save(ip netip.Addr) error {
	handle, err := netlink.NewHandleAt(f.Namespace, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer handle.Close()
	tracked, err := handle.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list the conntrack entries of this node: %w", err)
	}
	saved := ElementsOf(tracked, ip)
	if len(saved.To)+len(saved.ingress) == 0 {
		return nil
	}
	if err := f.Add(saved); err != nil {
		return fmt.Errorf("save the conntrack entries of %s: %w", ip, err)
	}
	if len(saved.To) == 0 {
		return nil
	}
	_, err = handle.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, saved.packets())
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("delete the conntrack entries of %s: %w", ip, err)
	}
	return nil
}

// Elements holds the elements of the maps and of the set.
type Elements struct{ To, from, ended, ingress []nftables.SetElement }

// ElementsOf returns the elements for an address's lasting flows that are translated or have an ingress mark.
func ElementsOf(tracked []*netlink.ConntrackFlow, ip netip.Addr) (saved Elements) {
	for _, flow := range tracked {
		forward, there := packetOf(flow.Forward)
		reverse, back := packetOf(flow.Reverse)
		concerns := ip == forward.from.Addr() || ip == reverse.from.Addr() || ip == reverse.to.Addr()
		translated := forward.from != reverse.to || forward.to != reverse.from
		lasts, ends := flowLasts(flow, ip == forward.from.Addr())
		if !there || !back || !concerns || !lasts {
			continue
		}
		if len(saved.To)+2*len(saved.ingress) >= 2*maxFlows {
			break
		}
		if !translated {
			saved.addIngress(forward, reverse, ip, flow.Mark&pool.IngressMask, ends)
			continue
		}
		for _, way := range [][2]packetKind{
			{forward, {forward.protocol, reverse.to, reverse.from}},
			{reverse, {forward.protocol, forward.to, forward.from}},
		} {
			saved.add(way[0], way[1], ends)
		}
	}
	return saved
}

// savedPackets is the set of keys of the saved flows' packets. If such a flow were still tracked, a packet of
// it that was translated already and comes out of the tunnel would be taken for another flow with the same
// answers, and get another port.
type savedPackets map[string]bool

func (f Elements) packets() savedPackets {
	all := savedPackets{}
	for _, e := range f.To {
		all[string(e.Key)] = true
	}
	return all
}

// MatchConntrackFlow reports whether a flow is one of these.
func (s savedPackets) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	forward, ok := packetOf(flow.Forward)
	return ok && s[string(forward.key())]
}

// add adds the translation of packets in one direction.
func (f *Elements) add(comes, goes packetKind, ends bool) {
	timeout := Idle
	if ends || comes.protocol == unix.IPPROTO_UDP {
		timeout = Over
	}
	f.To = append(f.To, nftables.SetElement{Key: comes.key(), Val: endpointKey(goes.to), Timeout: timeout})
	if ends {
		f.ended = append(f.ended, nftables.SetElement{Key: comes.key(), Timeout: Over})
	}
	if comes.from != goes.from {
		between := packetKind{comes.protocol, comes.from, goes.to}
		f.from = append(f.from, nftables.SetElement{Key: between.key(), Val: endpointKey(goes.from),
			Timeout: Idle})
	}
}

// flowLasts reports whether more packets of a flow may come, and whether one side has announced the end. A
// container repeats its own UDP requests, but a request to its published port may have been under way for
// long.
func flowLasts(flow *netlink.ConntrackFlow, opened bool) (lasts, ends bool) {
	if flow.Forward.Protocol == unix.IPPROTO_UDP {
		return !opened, false
	}
	tcp, ok := flow.ProtoInfo.(*netlink.ProtoInfoTCP)
	if !ok {
		return false, false
	}
	switch tcp.State {
	case nl.TCP_CONNTRACK_ESTABLISHED:
		return true, false
	case nl.TCP_CONNTRACK_FIN_WAIT, nl.TCP_CONNTRACK_CLOSE_WAIT, nl.TCP_CONNTRACK_LAST_ACK:
		return true, true
	}
	return false, false
}

// packetOf describes packets of a flow in one direction. Only protocols with ports are translated port by
// port.
func packetOf(tuple netlink.IPTuple) (packetKind, bool) {
	from, ok := netip.AddrFromSlice(tuple.SrcIP.To4())
	to, okTo := netip.AddrFromSlice(tuple.DstIP.To4())
	known := tuple.Protocol == unix.IPPROTO_TCP || tuple.Protocol == unix.IPPROTO_UDP
	return packetKind{
		protocol: tuple.Protocol, from: netip.AddrPortFrom(from, tuple.SrcPort),
		to: netip.AddrPortFrom(to, tuple.DstPort),
	}, ok && okTo && known
}

// Sets are the maps and the set of saved connections, as the packet filter has them. A packet that matches an
// element renews the element's timeout, except for ingress marks.
type Sets struct{ To, from, ended, ingress *nftables.Set }

// Describe returns the maps and the set, which are to be in a table.
func Describe(table *nftables.Table) (sets Sets, err error) {
	key, err := nftables.ConcatSetType(nftables.TypeInetProto, nftables.TypeIPAddr, nftables.TypeInetService,
		nftables.TypeIPAddr, nftables.TypeInetService)
	if err != nil {
		return sets, fmt.Errorf("describe the maps of connections: %w", err)
	}
	data, err := nftables.ConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	if err != nil {
		return sets, fmt.Errorf("describe the maps of connections: %w", err)
	}
	describe := func(name string) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, KeyType: key, Concatenation: true, HasTimeout: true,
			Dynamic: true, Size: flowSize}
	}
	sets = Sets{To: describe(mapTo), from: describe(mapFrom), ended: describe(setEnded),
		ingress: describe(MapIngress)}
	sets.ingress.IsMap, sets.ingress.DataType = true, nftables.TypeMark
	for _, one := range []*nftables.Set{sets.To, sets.from} {
		one.IsMap, one.DataType = true, data
	}
	return sets, nil
}

// Add adds elements, and makes the table if it is missing. New elements replace old ones for the same
// packets.
func (f Flows) Add(saved Elements) error {
	conn, err := nft.Open(f.Namespace)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: Table, Family: nftables.TableFamilyIPv4}
	sets, err := Describe(table)
	if err != nil {
		return err
	}
	there, err := f.Exist(conn)
	if err != nil {
		return err
	}
	if !there {
		if err := f.make(conn, table, sets); err != nil {
			return err
		}
	}
	if err := f.makeIngress(conn, table, sets); err != nil {
		return err
	}
	// Sources first: nothing else translates a packet that has its new destination from here. Without the
	// source entry, the receiver would see the old source, and answer with a reset.
	for _, part := range []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{{sets.ended, saved.ended}, {sets.from, saved.from}, {sets.To, saved.To}} {
		if there {
			if part.elements, err = replaceFlows(conn, part.set, part.elements); err != nil {
				return err
			}
		}
		if err := addElements(conn, part.set, part.elements); err != nil {
			return err
		}
	}
	return replaceIngress(conn, sets.ingress, saved.ingress)
}

func addElements(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	for batch := range slices.Chunk(elements, flowBatch) {
		if err := conn.SetAddElements(set, batch); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// replaceFlows removes elements that contradict the new ones, and returns the missing elements.
func replaceFlows(conn *nftables.Conn, set *nftables.Set,
	elements []nftables.SetElement) (missing []nftables.SetElement, err error) {
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

// Exist reports whether the table of connections exists.
func (f Flows) Exist(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == Table }), err
}

// make makes the table. A packet gets its new destination before routing, and its new source after
// routing: with the node's own address as source it would not be forwarded.
func (f Flows) make(conn *nftables.Conn, table *nftables.Table, sets Sets) error {
	conn.AddTable(table)
	for _, set := range []*nftables.Set{sets.To, sets.from, sets.ended} {
		if err := conn.AddSet(set, nil); err != nil {
			return err
		}
	}
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook,
		priority *nftables.ChainPriority) func(parts ...nft.Rule) {
		return nft.Adder(conn, table,
			conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook,
				Priority: priority}))
	}
	// Since Docker 28, Docker drops packets from outside to a container at that priority, so the
	// destination must not be translated yet.
	afterRaw := nftables.ChainPriorityRef(*nftables.ChainPriorityRaw + 1)
	sets.arrive(chain("arrive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, afterRaw))
	sets.arrive(chain("own", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityRaw))
	sets.leave(chain("leave", nftables.ChainTypeFilter, nftables.ChainHookPostrouting,
		nftables.ChainPriorityMangle))
	sets.leave(chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput,
		nftables.ChainPriorityMangle))
	return conn.Flush()
}

// arrive gives packets their new destinations. Once one side has sent its last data, its packets renew the
// entry for a short time only: they are acknowledgements, which come for as long as the other side sends. A
// packet that begins a connection may reuse the ports of an ended one.
func (f Sets) arrive(add func(parts ...nft.Rule)) {
	tcp, udp := nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq), nft.Protocol(unix.IPPROTO_UDP, expr.CmpOpEq)
	find, done := nft.Join(loadFlow(false), findFlow(f.To)),
		nft.Join(nft.Exprs(&expr.Notrack{}), nft.Accept())
	add(tcp, nft.HasFlag(nft.SYN), find,
		nft.Exprs(&expr.Dynset{SrcRegKey: registerKey, SetName: f.ended.Name, SetID: f.ended.ID,
			Operation: opDelete}))
	add(tcp, nft.HasFlag(nft.FIN|nft.RST), find, again(f.ended, Over))
	add(tcp, find, hasFlow(f.ended), again(f.ended, Over), again(f.To, Over), mayFragment(),
		rewrite(nft.OffsetDestination, nft.OffsetPort, nft.ChecksumTCP), done)
	add(tcp, find, again(f.To, Idle), mayFragment(),
		rewrite(nft.OffsetDestination, nft.OffsetPort, nft.ChecksumTCP),
		done)
	add(udp, nft.HasChecksum(true), find, again(f.To, Over), mayFragment(),
		rewrite(nft.OffsetDestination, nft.OffsetPort, nft.ChecksumUDP), done)
	add(udp, nft.HasChecksum(false), find, again(f.To, Over), mayFragment(),
		rewrite(nft.OffsetDestination, nft.OffsetPort, nft.NoChecksum), done)
}

// leave gives new sources to packets that have been given their new destination here, and so are not
// tracked. A reset ends the other side of its connection, too.
func (f Sets) leave(add func(parts ...nft.Rule)) {
	find := nft.Join(nft.InState(expr.CtStateBitUNTRACKED), loadFlow(false), findFlow(f.from),
		again(f.from, Idle))
	add(nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq), find, rewrite(nft.OffsetSource, 0, nft.ChecksumTCP))
	udp := nft.Protocol(unix.IPPROTO_UDP, expr.CmpOpEq)
	add(udp, nft.HasChecksum(true), find, rewrite(nft.OffsetSource, 0, nft.ChecksumUDP))
	add(udp, nft.HasChecksum(false), find, rewrite(nft.OffsetSource, 0, nft.NoChecksum))
	add(nft.Protocol(unix.IPPROTO_TCP, expr.CmpOpEq), nft.HasFlag(nft.RST),
		nft.InState(expr.CtStateBitUNTRACKED),
		loadFlow(true), findFlow(f.To), again(f.ended, Over), again(f.To, Over))
}

// opDelete removes an element (NFT_DYNSET_OP_DELETE, linux/netfilter/nf_tables.h).
const opDelete = 2

// loadFlow loads the packet's key, or the key of its answer.
func loadFlow(answer bool) nft.Rule {
	load := func(register, base, offset, length uint32) *expr.Payload {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBase(base), Offset: offset,
			Len: length}
	}
	from, to := uint32(registerKey+1), uint32(registerKey+3)
	if answer {
		from, to = to, from
	}
	return nft.Exprs(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: registerKey},
		load(from, unix.NFT_PAYLOAD_NETWORK_HEADER, nft.OffsetSource, 4),
		load(from+1, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2),
		load(to, unix.NFT_PAYLOAD_NETWORK_HEADER, nft.OffsetDestination, 4),
		load(to+1, unix.NFT_PAYLOAD_TRANSPORT_HEADER, nft.OffsetPort, 2),
	)
}

// findFlow looks up the translation for the key.
func findFlow(set *nftables.Set) nft.Rule {
	return nft.Exprs(&expr.Lookup{SourceRegister: registerKey, DestRegister: registerFound,
		IsDestRegSet: true,
		SetName:      set.Name, SetID: set.ID})
}

// hasFlow matches packets whose key is in the set.
func hasFlow(set *nftables.Set) nft.Rule {
	return nft.Exprs(&expr.Lookup{SourceRegister: registerKey, SetName: set.Name, SetID: set.ID})
}

// again renews the timeout of the element that was found for the key.
func again(set *nftables.Set, timeout time.Duration) nft.Rule {
	update := &expr.Dynset{SrcRegKey: registerKey, SetName: set.Name, SetID: set.ID,
		Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout}
	if set.IsMap {
		update.SrcRegData = registerFound
	}
	return nft.Exprs(update)
}

// Offsets of IPv4's checksum and flags.
const (
	offsetFlags    = 6
	offsetChecksum = 10
	dontFragment   = 0x40
)

// rewrite replaces an address and its port by the result of the lookup.
func rewrite(address, port, checksum uint32) nft.Rule {
	return nft.Exprs(
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: registerFound,
			Base: expr.PayloadBaseNetworkHeader, Offset: address,
			Len: 4, CsumType: expr.CsumTypeInet, CsumOffset: offsetChecksum,
			CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: registerFound + 1,
			Base: expr.PayloadBaseTransportHeader, Offset: port,
			Len: 2, CsumType: nft.ChecksumType(checksum), CsumOffset: checksum},
	)
}

// mayFragment allows the packet to be fragmented. The path to another node has a smaller MTU than the
// connection learnt when it began. The sender would not understand an ICMP message about that, because it
// knows neither of the addresses in the message.
func mayFragment() nft.Rule {
	return nft.Exprs(
		&expr.Payload{DestRegister: registerKey, Base: expr.PayloadBaseNetworkHeader, Offset: offsetFlags,
			Len: 2},
		&expr.Bitwise{SourceRegister: registerKey, DestRegister: registerKey, Len: 2,
			Mask: []byte{0xff &^ dontFragment, 0xff}, Xor: []byte{0, 0}},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: registerKey,
			Base: expr.PayloadBaseNetworkHeader, Offset: offsetFlags,
			Len: 2, CsumType: expr.CsumTypeInet, CsumOffset: offsetChecksum},
	)
}

// Forget removes the saved entries of an address, and the table if this was the last container that needs it.
func (f Flows) Forget(ip netip.Addr, last bool) error {
	conn, err := nft.Open(f.Namespace)
	if err != nil {
		return err
	}
	there, err := f.Exist(conn)
	if err != nil || !there {
		return err
	}
	table := &nftables.Table{Name: Table, Family: nftables.TableFamilyIPv4}
	if last {
		conn.DelTable(table)
		return conn.Flush()
	}
	sets, err := Describe(table)
	if err != nil {
		return err
	}
	err = errors.Join(removeElements(conn, sets.To, concerns(ip)),
		removeElements(conn, sets.from, concerns(ip)))
	// the table was made by an older version
	if _, missing := conn.GetSetByName(table, MapIngress); errors.Is(missing, os.ErrNotExist) {
		return err
	}
	return errors.Join(err, removeElements(conn, sets.ingress, concerns(ip)))
}

// removeElements removes the matching elements of a map.
func removeElements(conn *nftables.Conn, set *nftables.Set, match func(nftables.SetElement) bool) error {
	all, err := conn.GetSetElements(set)
	if err != nil {
		return fmt.Errorf("list the saved conntrack entries: %w", err)
	}
	gone := slices.DeleteFunc(all, func(e nftables.SetElement) bool { return !match(e) })
	for batch := range slices.Chunk(gone, flowBatch) {
		if err := conn.SetDeleteElements(set, batch); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove saved conntrack entries: %w", err)
		}
	}
	return nil
}

// concerns matches elements that contain an address.
func concerns(ip netip.Addr) func(nftables.SetElement) bool {
	has := func(data []byte, at int) bool {
		return len(data) >= at+4 && net.IP(data[at:at+4]).Equal(ip.AsSlice())
	}
	return func(e nftables.SetElement) bool { return has(e.Key, 4) || has(e.Key, 12) || has(e.Val, 0) }
}
