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

// When Podman makes a container's network, netavark (since 1.5) announces the container's address before
// anybody can block the network namespace (see blockNamespace). Its neighbours would send to it here while
// it still runs at another node, and packets that meet no socket are answered by a reset. So until the
// network is made, the bridges drop what claims to come from the container. Its hardware address, which is
// the same at each node, distinguishes it from others with its address on another bridge.

// setAbsent names the set of hardware and IP addresses whose packets bridges drop.
const setAbsent = "absent"

// hardwareSize is the size of an Ethernet address.
const hardwareSize = 6

// absentFor bounds this in case the agent ends: an engine has given up on a container earlier.
const absentFor = 5 * time.Minute

// Absent makes the node's bridges drop what comes from a container with these addresses, until Present is
// called or a new agent starts. If the kernel cannot filter on bridges, Absent logs that and does nothing.
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

// Present undoes Absent. It is idempotent.
func (n *Network) Present(ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	hardware := n.absent[ip]
	if hardware == nil {
		return nil
	}
	delete(n.absent, ip)
	if err := n.applyAbsent(); err != nil && !unsupported(err) {
		n.absent[ip] = hardware // so that it can be tried again
		return err
	}
	return nil
}

// applyAbsent replaces our packet filter table for bridges.
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
		whole := slices.Concat(hardware, make([]byte, 2), ip.AsSlice()) // four-byte registers
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

// removeAbsent removes our table for bridges, including that of an earlier process.
func (n *Network) removeAbsent() error {
	clear(n.absent)
	if err := n.applyAbsent(); !unsupported(err) {
		return err
	}
	return nil
}
