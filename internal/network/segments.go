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
)

// Segment is a network of an engine that all nodes have, each with a bridge of its own for it: the same
// subnet everywhere, of which each node's engine gives away the part that has the node's number, as of
// the pool. So no address is given twice, and a container that moves has its neighbours where it had
// them.
type Segment struct {
	Device string // the bridge
	Subnet netip.Prefix
}

// Part of a segment's subnet from which the engine of a node gives addresses.
func (s Segment) Part(number int) (netip.Prefix, error) {
	c := Config{Pool: s.Subnet}
	if !s.Subnet.Addr().Is4() || s.Subnet != s.Subnet.Masked() || s.Subnet.Bits() < 8 || s.Subnet.Bits() >= subnetBits {
		return netip.Prefix{}, fmt.Errorf("subnet %s is %w: it must be an IPv4 prefix of 8 to 23 bits", s.Subnet, ErrInvalid)
	}
	if err := c.checkNumber(number); err != nil {
		return netip.Prefix{}, err
	}
	return c.subnet(number), nil
}

// SetSegments says which there are, all of them. The routes of one that is gone stay until the agent
// starts anew: they lead to nobody. Of one that cannot be routed the error tells, the others are; what
// has failed is tried again when it is said again.
func (n *Network) SetSegments(segments []Segment) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var good []Segment
	var errs []error
	for _, segment := range segments {
		err := n.checkSegment(segment)
		if err == nil {
			good = append(good, segment)
		}
		errs = append(errs, err)
	}
	if slices.Equal(n.segments, good) && !n.unrouted {
		return errors.Join(errs...)
	}
	n.segments = good
	err := errors.Join(n.applyFirewall(), n.remakeBridges())
	if len(n.bridged)+len(n.segments) == 0 {
		err = errors.Join(err, n.endPass())
	} else {
		err = errors.Join(err, n.letPass())
	}
	n.unrouted = err != nil
	return errors.Join(append(errs, err)...)
}

// checkSegment wants a segment to have a part of this node's, and nothing of Godwit's own addresses.
func (n *Network) checkSegment(segment Segment) error {
	_, err := segment.Part(n.config.NodeNumber)
	if err == nil && segment.Subnet.Overlaps(n.config.Pool) {
		err = fmt.Errorf("subnet %s is %w: it overlaps %s", segment.Subnet, ErrInvalid, n.config.Pool)
	}
	if err != nil {
		return fmt.Errorf("network on %s: %w", segment.Device, err)
	}
	return nil
}

// routeSegments makes the routes to the parts of other nodes.
func (n *Network) routeSegments() error {
	var errs []error
	for _, segment := range n.segments {
		for number := range n.peers {
			part, err := segment.Part(number)
			if err == nil {
				err = n.links.RouteReplace(n.via(ipNet(part), number, unix.RT_TABLE_MAIN))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// claim tells a bridge's containers that this node answers for an address from now on: they would go on
// to send to where it was. A bridge that its engine has removed with the last of them (Podman) has none,
// until it makes it anew: see remakeBridges.
func (n *Network) claim(device string, ip netip.Addr) error {
	link, err := n.proxy(device, ip)
	if link == nil || err != nil {
		return err
	}
	return within(n.ns, func() error { return announce(link, ip) })
}

// unclaim undoes claim, as far as it can be undone: who has heard it sends by way of this node, which is
// right, too.
func (n *Network) unclaim(device string, ip netip.Addr) error {
	link, err := n.links.LinkByName(device)
	if isLinkNotFound(err) {
		return nil
	}
	if err == nil {
		err = n.links.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY, IP: ip.AsSlice()})
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("answer for %s on %s no more: %w", ip, device, err)
	}
	return nil
}

// isGuest tells whether an address is of the part of a segment that another node gives away.
func (n *Network) isGuest(ip netip.Addr) bool {
	return slices.ContainsFunc(n.segments, func(segment Segment) bool {
		part, err := segment.Part(n.config.NodeNumber)
		return err == nil && segment.Subnet.Contains(ip) && !part.Contains(ip)
	})
}

// sendElsewhere has the containers of bridges to which others come go on to send to these by way of this
// node, as long as they run elsewhere: Docker tells them otherwise, since 28, for some seconds from when
// it has made a network, and by a socket on which nothing is filtered. That it fails for one is said,
// and is no failure of what is done for another. some: there is one that arrives.
func (n *Network) sendElsewhere() (some bool) {
	for ip, one := range n.bridged {
		attached := n.containers[one.Container]
		if !one.Arriving || attached == nil || !one.Returning && !n.isGuest(ip) {
			continue
		}
		some = true
		if err := n.announceOn(attached.device, ip); err != nil {
			n.config.Log.Warn("neighbours are not told where a container is that comes", "container", one.Container, "error", err)
		}
	}
	return some
}

// An engine announces a container that comes for so long, and this node contradicts it so often: a
// neighbour loses what it sends meanwhile.
const (
	contradictEvery = 250 * time.Millisecond
	contradictFor   = 5 * time.Second
)

// contradict does sendElsewhere while an engine announces what has come now, or until nothing comes any more.
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

// contradictLater does sendElsewhere once more, and tells whether it is to be done again.
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

// sendHome has a bridge's containers send by way of this node to a guest that is not here any more, or
// has never run here: they would go on to send to where it has announced itself, for most of a minute.
func (n *Network) sendHome(device string, ip netip.Addr) error {
	if !n.isGuest(ip) {
		return nil
	}
	return n.announceOn(device, ip)
}

// announceOn has a bridge's containers send by way of this node to an address.
func (n *Network) announceOn(device string, ip netip.Addr) error {
	link, err := n.links.LinkByName(device)
	if isLinkNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", device, err)
	}
	return within(n.ns, func() error { return announce(link, ip) })
}

// announce sends an unasked ARP request for an address, with the device's own hardware address (RFC
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
	to := &unix.SockaddrLinklayer{Protocol: 0x0608, Ifindex: link.Attrs().Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} // ETH_P_ARP, swapped
	if err := unix.Sendto(socket, packet, 0, to); err != nil {
		return fmt.Errorf("announce %s on %s: %w", ip, link.Attrs().Name, err)
	}
	return nil
}

// announceWithin has a container announce its address.
func announceWithin(path string, ip netip.Addr) error {
	inside, err := openNamespace(path)
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
	return within(inside, func() error { return announce(eth0, ip) })
}

// inSegment: the address at this offset is, or is not, of a segment.
func inSegment(offset uint32, segment Segment, within bool) rule {
	return inPool(offset, segment.Subnet, within)
}

// bridgedAlternatives are the rules of which a packet must pass one to have an address of a container on
// a bridge.
func (n *Network) bridgedAlternatives(offset uint32, set rule) []rule {
	all := []rule{set}
	for _, segment := range n.segments {
		all = append(all, inSegment(offset, segment, true))
	}
	return all
}
