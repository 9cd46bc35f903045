package network

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tunQueue is how many packets the kernel queues while this process is not scheduled.
const tunQueue = 16384

// tun is a TUN device: packets routed to it are read from file, packets written to file come in by it.
type tun struct {
	name string
	file *os.File
	link netlink.Link
}

// openTun makes the device of a hold. The device goes when file is closed, also when this process ends.
func (n *Network) openTun(ip netip.Addr) (*tun, error) {
	bytes := ip.As4()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "gwhold" + hex.EncodeToString(bytes[:])
	device := &netlink.Tuntap{LinkAttrs: attributes, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true,
		Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE}
	err := within(n.ns, func() error {
		if err := n.links.LinkAdd(device); err != nil {
			return fmt.Errorf("make TUN device %s: %w", attributes.Name, err)
		}
		// The node's own packets come by a second time, with its own address as source: accept_local.
		return deviceSysctls(attributes.Name, "accept_local")
	})
	if len(device.Fds) == 0 {
		return nil, err
	}
	opened := &tun{name: attributes.Name, file: device.Fds[0]}
	if err == nil {
		err = n.configureTun(opened)
	}
	if err != nil {
		_ = opened.file.Close()
		return nil, err
	}
	return opened, nil
}

// configureTun gives the device its group, the tunnel's MTU and a long queue, and brings it up.
func (n *Network) configureTun(t *tun) error {
	link, err := n.links.LinkByName(t.name)
	if err != nil {
		return fmt.Errorf("find TUN device %s: %w", t.name, err)
	}
	for _, step := range []error{
		n.links.LinkSetGroup(link, groupHold), n.links.LinkSetMTU(link, n.mtu),
		n.links.LinkSetTxQLen(link, tunQueue),
		n.links.LinkSetUp(link),
	} {
		if step != nil {
			return fmt.Errorf("configure TUN device %s: %w", t.name, step)
		}
	}
	t.link = link
	return nil
}

// routeInto makes the address's main route lead into the device.
func (n *Network) routeInto(t *tun, ip netip.Addr) error {
	route := n.route(hostNet(ip), unix.RT_TABLE_MAIN)
	route.LinkIndex, route.Scope = t.link.Attrs().Index, unix.RT_SCOPE_LINK
	if err := n.links.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s into %s: %w", ip, t.name, err)
	}
	return nil
}

// isPacketFor reports whether this is an IPv4 packet to the address: a hold may forward nothing else.
func isPacketFor(packet []byte, ip netip.Addr) bool {
	const header = 20
	return len(packet) >= header && packet[0]>>4 == 4 &&
		ip == netip.AddrFrom4([4]byte(packet[offsetDestination:header]))
}

// opensTCP reports whether this IPv4 packet is a TCP SYN without ACK.
func opensTCP(packet []byte) bool {
	const header, protocol, fragment = 20, 9, 6
	length := int(packet[0]&0xf) * 4
	return length >= header && packet[protocol] == unix.IPPROTO_TCP &&
		(int(packet[fragment])<<8|int(packet[fragment+1]))&0x1fff == 0 && // the first or only fragment
		len(packet) > length+offsetTCPFlags && packet[length+offsetTCPFlags]&(tcpSYN|tcpACK) == tcpSYN
}

// firstClientPort is the first port that the kernel assigns to clients (ip_local_port_range,
// ip-sysctl.rst).
const firstClientPort = 32768

// isRequest reports whether this IPv4 packet is a datagram to a service's port: an answer goes to a port
// that the kernel chose.
func isRequest(packet []byte) bool {
	const header, protocol, fragment, port = 20, 9, 6, 2
	length := int(packet[0]&0xf) * 4
	return length >= header && packet[protocol] == unix.IPPROTO_UDP &&
		(int(packet[fragment])<<8|int(packet[fragment+1]))&0x1fff == 0 &&
		len(packet) > length+port+1 && int(packet[length+port])<<8|
		int(packet[length+port+1]) < firstClientPort
}
