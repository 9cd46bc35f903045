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
// anybody can block the network namespace (see blockNamespace). The container's neighbours would send to it
// here while it still runs at another node, and packets that meet no socket are answered by a reset. So
// until the network is made, the bridges drop packets that claim to come from the container. Its hardware
// address, which is the same at each node, distinguishes it from containers with the same address on
// another bridge.

// setSuppressed names the set of hardware and IP addresses whose ARP and IPv4 packets bridges drop.
const setSuppressed = "absent"

// hardwareSize is the size of an Ethernet address.
const hardwareSize = 6

// suppressFor ends the suppression if the agent has died; an engine gives up on a container earlier.
const suppressFor = 5 * time.Minute

// SuppressARP makes the node's bridges drop ARP and IPv4 packets from a container with these addresses,
// until AllowARP is called or a new agent starts. If the kernel cannot filter on bridges, SuppressARP logs
// that and does nothing.
func (n *Network) SuppressARP(ip netip.Addr, mac string) error {
	hardware, err := net.ParseMAC(mac)
	if err != nil || len(hardware) != hardwareSize || !ip.Is4() {
		return fmt.Errorf("addresses %s and %.40q are %w", ip, mac, ErrInvalid)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.suppressed[ip] = hardware
	err = n.applySuppressed()
	if unsupported(err) {
		n.config.Log.Warn("this kernel does not filter on bridges: connections of a container's neighbours "+
			"may end when the container arrives", "address", ip, "error", err)
		return nil
	}
	return err
}

// AllowARP undoes SuppressARP. It is idempotent.
func (n *Network) AllowARP(ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	hardware := n.suppressed[ip]
	if hardware == nil {
		return nil
	}
	delete(n.suppressed, ip)
	if err := n.applySuppressed(); err != nil && !unsupported(err) {
		n.suppressed[ip] = hardware // so that a retry is possible
		return err
	}
	return nil
}

// applySuppressed replaces our packet filter table for bridges.
func (n *Network) applySuppressed() error {
	conn, err := n.filter()
	if err != nil {
		return err
	}
	table := newTable(conn, nftables.TableFamilyBridge)
	if len(n.suppressed) == 0 {
		conn.DelTable(table)
	} else if err := n.suppressRules(conn, table); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("replace table %s of the packet filter for bridges: %w", tableName, err)
	}
	return nil
}

func (n *Network) suppressRules(conn *nftables.Conn, table *nftables.Table) error {
	key, err := nftables.ConcatSetType(nftables.TypeEtherAddr, nftables.TypeIPAddr)
	if err != nil {
		return fmt.Errorf("describe the set of suppressed addresses: %w", err)
	}
	set := &nftables.Set{
		Table: table, Name: setSuppressed, KeyType: key, Concatenation: true, HasTimeout: true,
	}
	var elements []nftables.SetElement
	for ip, hardware := range n.suppressed {
		whole := slices.Concat(hardware, make([]byte, 2), ip.AsSlice()) // four-byte registers
		elements = append(elements, nftables.SetElement{Key: whole, Timeout: suppressFor})
	}
	if err := conn.AddSet(set, elements); err != nil {
		return fmt.Errorf("describe the set of suppressed addresses: %w", err)
	}
	add := ruleAdder(conn, table,
		conn.AddChain(&nftables.Chain{Name: "arrive", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}))
	const source, senderInARP = 6, 14 // of Ethernet's header, and RFC 826 with Ethernet and IPv4
	for protocol, offset := range map[uint16]uint32{unix.ETH_P_IP: offsetSource,
		unix.ETH_P_ARP: senderInARP} {
		add(is(&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
				Data: binaryutil.BigEndian.PutUint16(protocol)},
			&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseLLHeader, Offset: source,
				Len: hardwareSize},
			&expr.Payload{DestRegister: unix.NFT_REG32_02, Base: expr.PayloadBaseNetworkHeader,
				Offset: offset, Len: 4},
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: set.Name, SetID: set.ID}), drop())
	}
	return nil
}

// removeSuppressed removes our table for bridges, including that of an earlier process.
func (n *Network) removeSuppressed() error {
	clear(n.suppressed)
	if err := n.applySuppressed(); !unsupported(err) {
		return err
	}
	return nil
}
