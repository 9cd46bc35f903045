package bridge

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
)

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

// AnnounceWithin makes a container announce its address.
func AnnounceWithin(path string, ip netip.Addr) error {
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
	eth0, err := handle.LinkByName(pool.InsideDevice)
	if err != nil {
		return fmt.Errorf("find the container's %s: %w", pool.InsideDevice, err)
	}
	return namespace.Within(inside, func() error { return announce(eth0, ip) })
}
