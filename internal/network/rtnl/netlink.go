package rtnl

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/godwit/godwit/internal/network/dump"
)

// IPNet converts to the type that the netlink library takes.
func IPNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// HostNet returns the prefix of a single address.
func HostNet(ip netip.Addr) *net.IPNet { return IPNet(netip.PrefixFrom(ip, ip.BitLen())) }

// AllAddresses is the default route's prefix.
func AllAddresses() *net.IPNet { return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)} }

// PrefixOf converts from the netlink library's type; nil is the default route.
func PrefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), bits), ok
}

// AddressesOf lists the addresses of a device; of all devices if link is nil.
func AddressesOf(handle *netlink.Handle, link netlink.Link, family int) ([]netlink.Addr, error) {
	return dump.Whole(func() ([]netlink.Addr, error) { return handle.AddrList(link, family) })
}

// IsLinkNotFound distinguishes a missing device from a failed lookup.
func IsLinkNotFound(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}
