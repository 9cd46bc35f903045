package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// RoutedNetwork is a network of an engine that all nodes have, each with a bridge of its own. The subnet is
// the same everywhere, and each node's engine assigns addresses from the part with the node's number, as in
// the pool. So no address is assigned twice, and a container that moves finds its neighbours at the same
// addresses.
type RoutedNetwork struct {
	Device string // the bridge
	Subnet netip.Prefix
}

// Part returns the part of a routed network's subnet from which a node's engine assigns addresses.
func (r RoutedNetwork) Part(number int) (netip.Prefix, error) {
	p := pool.Pool{Prefix: r.Subnet}
	bits := r.Subnet.Bits()
	if !r.Subnet.Addr().Is4() || r.Subnet != r.Subnet.Masked() || bits < 8 || bits >= pool.SubnetBits {
		return netip.Prefix{}, fmt.Errorf("subnet %s is %w: it must be an IPv4 prefix of 8 to 23 bits",
			r.Subnet, ErrInvalid)
	}
	if err := p.CheckNumber(number); err != nil {
		return netip.Prefix{}, err
	}
	return p.Subnet(number), nil
}

// SetRoutedNetworks replaces the set of routed networks. Routes of a removed network stay until the agent
// restarts: they lead nowhere. The error names networks that cannot be routed; the others are routed. The
// next call tries failed ones again.
func (n *Network) SetRoutedNetworks(networks []RoutedNetwork) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var good []RoutedNetwork
	var errs []error
	for _, routed := range networks {
		err := n.checkRouted(routed)
		if err == nil {
			good = append(good, routed)
		}
		errs = append(errs, err)
	}
	if slices.Equal(n.routed, good) && !n.unrouted {
		return errors.Join(errs...)
	}
	n.routed = good
	err := errors.Join(n.filterBridged(), n.remakeBridges())
	if len(n.bridged)+len(n.routed) == 0 {
		err = errors.Join(err, n.passages.Remove())
	} else {
		err = errors.Join(err, n.passages.Make())
	}
	n.unrouted = err != nil
	return errors.Join(append(errs, err)...)
}

// checkRouted requires a routed network to contain a part for this node, and none of the pool's addresses.
func (n *Network) checkRouted(routed RoutedNetwork) error {
	_, err := routed.Part(n.pool.Number)
	if err == nil && routed.Subnet.Overlaps(n.config.Pool) {
		err = fmt.Errorf("subnet %s is %w: it overlaps %s", routed.Subnet, ErrInvalid, n.config.Pool)
	}
	if err != nil {
		return fmt.Errorf("network on %s: %w", routed.Device, err)
	}
	return nil
}

// routeNetworks makes the routes to the parts of other nodes.
func (n *Network) routeNetworks() error {
	var errs []error
	for _, routed := range n.routed {
		for number := range n.tunnel.Peers() {
			part, err := routed.Part(number)
			if err == nil {
				err = n.links.RouteReplace(n.routes.Via(rtnl.IPNet(part), number, unix.RT_TABLE_MAIN))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// claim makes a bridge's containers send to this node for an address; otherwise they would keep sending to
// where it was. Podman removes a bridge with its last container: then there is no bridge until the engine
// makes it again, see remakeBridges.
func (n *Network) claim(device string, ip netip.Addr) error {
	link, err := n.proxy(device, ip)
	if link == nil || err != nil {
		return err
	}
	return namespace.Within(n.ns, func() error { return announce(link, ip) })
}

// unclaim undoes claim, as far as possible: containers that have heard the announcement send through this
// node, which works, too.
func (n *Network) unclaim(device string, ip netip.Addr) error {
	link, err := n.links.LinkByName(device)
	if rtnl.IsLinkNotFound(err) {
		return nil
	}
	if err == nil {
		err = n.links.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET,
			Flags: netlink.NTF_PROXY, IP: ip.AsSlice()})
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop answering for %s on %s: %w", ip, device, err)
	}
	return nil
}

// isGuest reports whether an address is in the part of a routed network that belongs to another node.
func (n *Network) isGuest(ip netip.Addr) bool {
	return slices.ContainsFunc(n.routed, func(routed RoutedNetwork) bool {
		part, err := routed.Part(n.pool.Number)
		return err == nil && routed.Subnet.Contains(ip) && !part.Contains(ip)
	})
}

// sendElsewhere makes the containers of bridges keep sending to arriving containers through this node while
// those still run elsewhere. Since Docker 28, Docker announces otherwise, for some seconds after it has
// made a network, and through a socket that no filter covers. A failure for one container is logged and
// does not affect the others. The result reports whether a container is arriving.
func (n *Network) sendElsewhere() (some bool) {
	for ip, one := range n.bridged {
		attached := n.containers[one.Container]
		if !one.Arriving || attached == nil || !one.Returning && !n.isGuest(ip) {
			continue
		}
		some = true
		if err := n.announceOn(attached.device, ip); err != nil {
			n.config.Log.Warn("cannot announce an arriving container to its neighbours", "container",
				one.Container, "error", err)
		}
	}
	return some
}

// How long an engine announces an arriving container, and how often this node contradicts the announcement.
// Neighbours' packets are lost in between.
const (
	contradictEvery = 250 * time.Millisecond
	contradictFor   = 5 * time.Second
)

// contradict repeats sendElsewhere while an engine announces the latest arrival, or until nothing arrives
// any more.
func (n *Network) contradict() {
	if !n.sendElsewhere() {
		return
	}
	n.contradicted = time.Now().Add(contradictFor)
	if n.contradicting {
		return
	}
	n.contradicting = true
	n.background.Add(1)
	go func() {
		defer n.background.Done()
		for n.contradictLater() {
		}
	}()
}

// contradictLater calls sendElsewhere once more, and reports whether to repeat it.
func (n *Network) contradictLater() bool {
	select {
	case <-n.closed:
		return false
	case <-time.After(contradictEvery):
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.contradicting = n.sendElsewhere() && time.Now().Before(n.contradicted)
	return n.contradicting
}

// sendHome makes a bridge's containers send through this node to a guest that has left, or has never run
// here. Otherwise they would keep sending to where the guest announced itself, for most of a minute.
func (n *Network) sendHome(device string, ip netip.Addr) error {
	if !n.isGuest(ip) {
		return nil
	}
	return n.announceOn(device, ip)
}

// announceOn makes a bridge's containers send to an address through this node.
func (n *Network) announceOn(device string, ip netip.Addr) error {
	link, err := n.links.LinkByName(device)
	if rtnl.IsLinkNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", device, err)
	}
	return namespace.Within(n.ns, func() error { return announce(link, ip) })
}

// announce sends an unsolicited ARP request for an address, with the device's own hardware address (RFC
// 5227, section 2.3).
func announce(link netlink.Link, ip netip.Addr) error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket for ARP: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	const ethernet, ipv4, request = 1, 0x0800, 1
	mac := link.Attrs().HardwareAddr
	packet := binary.BigEndian.AppendUint16(nil, ethernet)
	packet = binary.BigEndian.AppendUint16(packet, ipv4)
	packet = append(packet, byte(len(mac)), 4)
	packet = binary.BigEndian.AppendUint16(packet, request)
	packet = slices.Concat(packet, mac, ip.AsSlice(), make([]byte, len(mac)), ip.AsSlice())
	// ETH_P_ARP, swapped
	to := &unix.SockaddrLinklayer{Protocol: 0x0608, Ifindex: link.Attrs().Index, Halen: 6,
		Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	if err := unix.Sendto(socket, packet, 0, to); err != nil {
		return fmt.Errorf("announce %s on %s: %w", ip, link.Attrs().Name, err)
	}
	return nil
}

// announceWithin makes a container announce its address.
func announceWithin(path string, ip netip.Addr) error {
	inside, err := namespace.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	handle, err := netlink.NewHandleAt(inside, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket in the container's namespace: %w", err)
	}
	defer handle.Close()
	eth0, err := handle.LinkByName(insideDevice)
	if err != nil {
		return fmt.Errorf("find the container's %s: %w", insideDevice, err)
	}
	return namespace.Within(inside, func() error { return announce(eth0, ip) })
}
