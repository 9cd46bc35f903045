package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// Bridges are the bridges of engines on a node, on which the node answers for containers at other nodes.
type Bridges struct {
	namespace netns.NsHandle
	links     *netlink.Handle

	mu    sync.Mutex
	fixed map[int]bool // bridges, by index, whose hardware address is fixed
}

// New changes nothing yet.
func New(namespace netns.NsHandle, links *netlink.Handle) *Bridges {
	return &Bridges{namespace: namespace, links: links, fixed: map[int]bool{}}
}

// Claim makes a bridge's containers send to this node for an address; otherwise they would keep sending to
// where it was. Podman removes a bridge with its last container: then there is no bridge until the engine
// makes it again.
func (b *Bridges) Claim(device string, ip netip.Addr) error {
	link, err := b.Answer(device, ip)
	if link == nil || err != nil {
		return err
	}
	return namespace.Within(b.namespace, func() error { return announce(link, ip) })
}

// Unclaim undoes Claim, as far as possible: containers that have heard the announcement send through this
// node, which works, too.
func (b *Bridges) Unclaim(device string, ip netip.Addr) error {
	link, err := b.links.LinkByName(device)
	if rtnl.IsLinkNotFound(err) {
		return nil
	}
	if err == nil {
		err = b.links.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET,
			Flags: netlink.NTF_PROXY, IP: ip.AsSlice()})
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop answering for %s on %s: %w", ip, device, err)
	}
	return nil
}

// Announce makes a bridge's containers send to an address through this node.
func (b *Bridges) Announce(device string, ip netip.Addr) error {
	link, err := b.links.LinkByName(device)
	if rtnl.IsLinkNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", device, err)
	}
	return namespace.Within(b.namespace, func() error { return announce(link, ip) })
}

// Answer makes this node answer on a bridge for an address. It returns the bridge, or nil if it does not
// exist now.
func (b *Bridges) Answer(device string, ip netip.Addr) (netlink.Link, error) {
	link, err := b.Find(device)
	if link == nil || err != nil {
		return nil, err
	}
	entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY,
		IP: ip.AsSlice()}
	if err := b.links.NeighSet(entry); err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("answer for %s on %s: %w", ip, device, err)
	}
	return link, nil
}

// Find returns a bridge on which this node answers for containers elsewhere, or nil if it does not exist
// now. It fixes the bridge's hardware address, as newer engines do. Otherwise the bridge has the address of
// one of its ports, and gets another one when that container leaves, without notice to containers that send
// through the bridge.
func (b *Bridges) Find(device string) (netlink.Link, error) {
	link, err := b.links.LinkByName(device)
	if rtnl.IsLinkNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err == nil {
		err = b.fix(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("find bridge %s: %w", device, err)
	}
	return link, nil
}

// fix fixes a bridge's hardware address.
func (b *Bridges) fix(link netlink.Link) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fixed[link.Attrs().Index] {
		return nil
	}
	err := b.links.LinkSetHardwareAddr(link, link.Attrs().HardwareAddr)
	b.fixed[link.Attrs().Index] = err == nil
	return err
}

// AnswerForAll makes this node answer ARP requests on a bridge for addresses at other nodes, and forward to
// them (ip-sysctl.rst, proxy_arp).
func (b *Bridges) AnswerForAll(device string) error {
	if link, err := b.Find(device); link == nil || err != nil {
		return err
	}
	err := namespace.Within(b.namespace, func() error {
		return namespace.Sysctl("ipv4/conf/"+device+"/proxy_arp", "1")
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the bridge has gone
		return fmt.Errorf("network on %s: %w", device, err)
	}
	return nil
}
