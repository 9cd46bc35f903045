package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
)

// Published is a port of a node through which a container of this node is reached.
type Published struct {
	Protocol      string     `json:"protocol"`      // tcp or udp
	Host          netip.Addr `json:"host,omitzero"` // zero: each address of the node
	HostPort      uint16     `json:"host_port"`
	ContainerPort uint16     `json:"container_port"`
}

// Conflicts reports whether a packet could match both ports.
func (p Published) Conflicts(other Published) bool {
	each := func(host netip.Addr) bool { return !host.IsValid() || host.IsUnspecified() }
	return p.Protocol == other.Protocol && p.HostPort == other.HostPort &&
		(each(p.Host) || each(other.Host) || p.Host == other.Host)
}

// Config of a Filter.
type Config struct {
	Namespace netns.NsHandle // of the node
	Pool      pool.Pool
	Underlay  netip.Addr
	// UnderlayDevice is the interface with the underlay address.
	UnderlayDevice string
	Encrypted      bool // the tunnel's packets come from the overlay's device
	TunnelPort     int  // UDP ports
	OverlayPort    int
	Guarded        bool // this node did not forward packets before: see forwardChain
}

// Peer is another node, as the packet filter knows it.
type Peer struct {
	Underlay netip.Addr // may be unknown
	End      netip.Addr // of the tunnel; not valid: nothing is accepted from the peer
}

// Bridged is a container on a bridge, as the packet filter knows it.
type Bridged struct {
	Address netip.Addr
	Here    bool
	Via     int // number of the node that has it; 0: this node
	Origin  int // number of the node from which it last arrived; 0: none
	Ports   []Published
	Closing bool // no connections to or from it are opened, nor through its published ports
}

// Filter is the packet filter of a node: what it was told of peers and containers, and the tables in the
// kernel that follow from that.
type Filter struct {
	config Config

	mu         sync.Mutex
	peers      map[int]Peer          // by number
	containers map[string]netip.Addr // that may send, by their devices
	bridged    []Bridged
	routed     []netip.Prefix // subnets of routed networks
}

// New returns a packet filter that knows neither peers nor containers, and changes nothing yet.
func New(config Config) *Filter {
	return &Filter{config: config, containers: map[string]netip.Addr{}}
}

// In makes later changes in another network namespace.
func (f *Filter) In(namespace netns.NsHandle) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config.Namespace = namespace
}

// KnowPeers records the peers for the next Apply.
func (f *Filter) KnowPeers(peers map[int]Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers = peers
}

// KnowContainer records for the next Apply that a container may send.
func (f *Filter) KnowContainer(device string, ip netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[device] = ip
}

// KnowBridged records the containers on bridges and the routed networks for the next Apply.
func (f *Filter) KnowBridged(containers []Bridged, routed []netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bridged, f.routed = containers, routed
}

// Apply makes the tables follow from what the Filter knows.
func (f *Filter) Apply() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.apply()
}

// SetPeers replaces the peers. After an error, the old ones are still known.
func (f *Filter) SetPeers(peers map[int]Peer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.peers
	f.peers = peers
	err := f.apply()
	if err != nil {
		f.peers = old
	}
	return err
}

// SetBridged replaces the containers on bridges and the routed networks. After an error, the next change
// of the tables includes them.
func (f *Filter) SetBridged(containers []Bridged, routed []netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bridged, f.routed = containers, routed
	return f.apply()
}

// Allow lets a container send, or stops it from sending. It changes only the sets of containers.
func (f *Filter) Allow(device string, ip netip.Addr, yes bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, is := f.containers[device]; is == yes {
		return nil
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(f.config.Namespace)), nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("open the packet filter: %w", err)
	}
	defer nft.CloseLater(conn)
	table := &nftables.Table{Name: nft.TableName, Family: nftables.TableFamilyIPv4}
	set, err := containerSet(table)
	if err != nil {
		return err
	}
	element := []nftables.SetElement{containerElement(device, ip)}
	change := conn.SetAddElements
	if !yes {
		change = conn.SetDeleteElements
	}
	err = errors.Join(change(set, element),
		change(hereSet(table), []nftables.SetElement{{Key: ip.AsSlice()}}))
	if err == nil {
		err = conn.Flush()
	}
	if err != nil && !(errors.Is(err, os.ErrNotExist) && !yes) {
		return fmt.Errorf("let device %s send as %s (%t): %w", device, ip, yes, err)
	}
	if yes {
		f.containers[device] = ip
	} else {
		delete(f.containers, device)
	}
	return nil
}

// Remove removes our tables.
func (f *Filter) Remove() error {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		conn, err := nft.Open(f.config.Namespace)
		if err != nil {
			return err
		}
		conn.DelTable(&nftables.Table{Name: nft.TableName, Family: family})
		if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove table %s of the packet filter: %w", nft.TableName, err)
		}
	}
	return nil
}
