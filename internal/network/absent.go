package network

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Podman makes a container's network, and netavark announces its address (since 1.5), before anybody could muzzle it (see muzzle): its
// neighbours would send to it while it still runs at another node, and what has no socket here yet is answered by a reset. So for as long
// as that is made, bridges take nothing that says to be from it. Its hardware address, which it has at each node, tells it from others that have
// its address on another bridge.

// setAbsent are the hardware addresses and addresses of which bridges take nothing.
const setAbsent = "absent"

// hardwareSize is that of an address of Ethernet.
const hardwareSize = 6

// absentFor ends that by itself, if the agent ends: an engine has given up a container before.
const absentFor = 5 * time.Minute

// Absent has the node's bridges take nothing that comes from a container with these addresses, until Present, or a new agent. A kernel that cannot
// filter on bridges does not, which is said.
func (n *Network) Absent(ip netip.Addr, mac string) error {
	hardware, err := net.ParseMAC(mac)
	if err != nil || len(hardware) != hardwareSize || !ip.Is4() {
		return fmt.Errorf("addresses %s and %.40q are %w", ip, mac, ErrInvalid)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.absent[ip] = hardware
	err = n.applyAbsent()
	if unsupported(err) {
		n.config.Log.Warn("this kernel does not filter on bridges: connections of a container's neighbours may end when it comes", "address", ip, "error", err)
		return nil
	}
	return err
}

// Present undoes Absent. Doing nothing is success.
func (n *Network) Present(ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	hardware := n.absent[ip]
	if hardware == nil {
		return nil
	}
	delete(n.absent, ip)
	if err := n.applyAbsent(); err != nil && !unsupported(err) {
		n.absent[ip] = hardware // it can be tried again
		return err
	}
	return nil
}

// applyAbsent replaces our table for bridges.
func (n *Network) applyAbsent() error {
	conn, err := n.filter()
	if err != nil {
		return err
	}
	table := newTable(conn, nftables.TableFamilyBridge)
	if len(n.absent) == 0 {
		conn.DelTable(table)
	} else if err := n.absentRules(conn, table); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("replace table %s of the packet filter for bridges: %w", tableName, err)
	}
	return nil
}

func (n *Network) absentRules(conn *nftables.Conn, table *nftables.Table) error {
	key, err := nftables.ConcatSetType(nftables.TypeEtherAddr, nftables.TypeIPAddr)
	if err != nil {
		return fmt.Errorf("describe the set of absent addresses: %w", err)
	}
	set := &nftables.Set{Table: table, Name: setAbsent, KeyType: key, Concatenation: true, HasTimeout: true}
	var elements []nftables.SetElement
	for ip, hardware := range n.absent {
		whole := slices.Concat(hardware, make([]byte, 2), ip.AsSlice()) // each part begins with a register of four bytes
		elements = append(elements, nftables.SetElement{Key: whole, Timeout: absentFor})
	}
	if err := conn.AddSet(set, elements); err != nil {
		return fmt.Errorf("describe the set of absent addresses: %w", err)
	}
	add := ruleAdder(conn, table, conn.AddChain(&nftables.Chain{Name: "arrive", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}))
	const source, senderInARP = 6, 14 // of Ethernet's header, and RFC 826 with Ethernet and IPv4
	for protocol, offset := range map[uint16]uint32{unix.ETH_P_IP: offsetSource, unix.ETH_P_ARP: senderInARP} {
		add(is(&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: binaryutil.BigEndian.PutUint16(protocol)},
			&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseLLHeader, Offset: source, Len: hardwareSize},
			&expr.Payload{DestRegister: unix.NFT_REG32_02, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: set.Name, SetID: set.ID}), drop())
	}
	return nil
}

// removeAbsent removes our table for bridges, also that of an earlier process.
func (n *Network) removeAbsent() error {
	clear(n.absent)
	if err := n.applyAbsent(); !unsupported(err) {
		return err
	}
	return nil
}
