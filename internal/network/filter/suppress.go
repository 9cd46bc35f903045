package filter

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// When Podman makes a container's network, netavark (since 1.5) announces the container's address before
// anybody can block the network namespace (network.BlockNamespace). The container's neighbours would send to
// it here while it still runs at another node, and packets that meet no socket are answered by a reset. So
// until the network is made, the bridges drop packets that claim to come from the container. Its hardware
// address, which is the same at each node, distinguishes it from containers with the same address on another
// bridge.

// setSuppressed names the set of hardware and IP addresses whose ARP and IPv4 packets bridges drop.
const setSuppressed = "absent"

// hardwareSize is the size of an Ethernet address.
const hardwareSize = 6

// suppressFor ends the suppression if the agent has died; an engine gives up on a container earlier.
const suppressFor = 5 * time.Minute

// Suppression is the set of containers on a node's bridges whose ARP is suppressed.
type Suppression struct {
	namespace netns.NsHandle
	log       *slog.Logger

	mu        sync.Mutex
	addresses map[netip.Addr]net.HardwareAddr // whose packets bridges drop
}

// NewSuppression suppresses nothing yet.
func NewSuppression(namespace netns.NsHandle, log *slog.Logger) *Suppression {
	return &Suppression{namespace: namespace, log: log, addresses: map[netip.Addr]net.HardwareAddr{}}
}

// In makes later changes in another network namespace.
func (s *Suppression) In(namespace netns.NsHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.namespace = namespace
}

// Suppress makes the node's bridges drop ARP and IPv4 packets from a container with these addresses,
// until Allow is called or a new agent starts. If the kernel cannot filter on bridges, Suppress logs
// that and does nothing.
func (s *Suppression) Suppress(ip netip.Addr, mac string) error {
	hardware, err := net.ParseMAC(mac)
	if err != nil || len(hardware) != hardwareSize || !ip.Is4() {
		return fmt.Errorf("addresses %s and %.40q are %w", ip, mac, pool.ErrInvalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses[ip] = hardware
	err = s.apply()
	if nft.Unsupported(err) {
		s.log.Warn("this kernel does not filter on bridges: connections of a container's neighbours "+
			"may end when the container arrives", "address", ip, "error", err)
		return nil
	}
	return err
}

// Allow undoes Suppress. It is idempotent.
func (s *Suppression) Allow(ip netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	hardware := s.addresses[ip]
	if hardware == nil {
		return nil
	}
	delete(s.addresses, ip)
	if err := s.apply(); err != nil && !nft.Unsupported(err) {
		s.addresses[ip] = hardware // so that a retry is possible
		return err
	}
	return nil
}

// apply replaces our packet filter table for bridges.
func (s *Suppression) apply() error {
	conn, err := nft.Open(s.namespace)
	if err != nil {
		return err
	}
	table := nft.NewTable(conn, nftables.TableFamilyBridge)
	if len(s.addresses) == 0 {
		conn.DelTable(table)
	} else if err := s.rules(conn, table); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("replace table %s of the packet filter for bridges: %w", nft.TableName, err)
	}
	return nil
}

func (s *Suppression) rules(conn *nftables.Conn, table *nftables.Table) error {
	key, err := nftables.ConcatSetType(nftables.TypeEtherAddr, nftables.TypeIPAddr)
	if err != nil {
		return fmt.Errorf("describe the set of suppressed addresses: %w", err)
	}
	set := &nftables.Set{
		Table: table, Name: setSuppressed, KeyType: key, Concatenation: true, HasTimeout: true,
	}
	var elements []nftables.SetElement
	for ip, hardware := range s.addresses {
		whole := slices.Concat(hardware, make([]byte, 2), ip.AsSlice()) // four-byte registers
		elements = append(elements, nftables.SetElement{Key: whole, Timeout: suppressFor})
	}
	if err := conn.AddSet(set, elements); err != nil {
		return fmt.Errorf("describe the set of suppressed addresses: %w", err)
	}
	add := nft.Adder(conn, table,
		conn.AddChain(&nftables.Chain{Name: "arrive", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}))
	const source, senderInARP = 6, 14 // of Ethernet's header, and RFC 826 with Ethernet and IPv4
	for protocol, offset := range map[uint16]uint32{unix.ETH_P_IP: nft.OffsetSource,
		unix.ETH_P_ARP: senderInARP} {
		add(nft.Exprs(&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
				Data: binaryutil.BigEndian.PutUint16(protocol)},
			&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseLLHeader, Offset: source,
				Len: hardwareSize},
			&expr.Payload{DestRegister: unix.NFT_REG32_02, Base: expr.PayloadBaseNetworkHeader,
				Offset: offset, Len: 4},
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: set.Name, SetID: set.ID}), nft.Drop())
	}
	return nil
}

// Remove removes our table for bridges, including that of an earlier process.
func (s *Suppression) Remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.addresses)
	if err := s.apply(); !nft.Unsupported(err) {
		return err
	}
	return nil
}
