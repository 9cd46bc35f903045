package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/units"
)

const (
	linkMTU         = 1500
	clientInterface = "eth0"
	transmitQueue   = 2000 // packets; room for arrivals while the relay's thread wakes up
)

// burstTime is how long one packet of the kernel's segmentation offload may keep the wire busy. It makes a
// slow link see packets and not 64 KiB at once.
const burstTime = 0.0004

// Addresses of a lab. They are the same in every lab: each has its own namespaces.
func nodeAddress(number int) netip.Addr   { return netip.AddrFrom4([4]byte{10, 77, 0, byte(number)}) }
func clientAddress(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 99, byte(number), 2}) }
func gatewayAddress(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 99, byte(number), 1})
}
func clientPrefix(number int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, byte(number), 0}), 24)
}

// address returns the address at which other machines reach this one.
func (m *machine) address() netip.Addr {
	if m.isNode() {
		return nodeAddress(m.Number)
	}
	return clientAddress(m.Number)
}

// interfaceTo returns the name, in a node, of the interface to another machine.
func interfaceTo(other *machine) string {
	if other.isNode() {
		return "to-" + other.Name
	}
	return "cl-" + other.Name
}

// ends returns the locations of a wire's two interfaces.
func (s *state) ends(w *wire) ([2]relayEnd, error) {
	a, err := s.machine(w.A)
	if err != nil {
		return [2]relayEnd{}, err
	}
	b, err := s.machine(w.B)
	if err != nil {
		return [2]relayEnd{}, err
	}
	for _, m := range []*machine{a, b} {
		if !m.alive() {
			return [2]relayEnd{}, fmt.Errorf("%s of lab %s is not running; take the lab down and up again",
				m.Name, s.Name)
		}
	}
	nearA := interfaceTo(b)
	if !a.isNode() {
		nearA = clientInterface
	}
	return [2]relayEnd{{PID: a.PID, Interface: nearA}, {PID: b.PID, Interface: interfaceTo(a)}}, nil
}

// connect makes the link between two nodes, with addresses: each node has its one address on all its
// interfaces, point to point, so that every pair can have its own link.
func (s *state) connect(w *wire, a, b *machine) error {
	ends, err := s.ends(w)
	if err != nil {
		return err
	}
	if err := s.wiring().attach(w, ends); err != nil {
		return fmt.Errorf("link %s-%s: %w", w.A, w.B, err)
	}
	for i, pair := range [2][2]*machine{{a, b}, {b, a}} {
		own, peer := nodeAddress(pair[0].Number), nodeAddress(pair[1].Number)
		if err := bringUp(ends[i], own, 32, peer, 32, w.Link); err != nil {
			return fmt.Errorf("link %s-%s: %w", w.A, w.B, err)
		}
	}
	return s.wiring().set(w, ends)
}

// inNetwork calls f with a netlink socket in the network namespace of a process.
func inNetwork(pid int, f func(*netlink.Handle) error) error {
	space, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	defer space.Close()
	handle, err := netlink.NewHandleAt(space, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	defer handle.Close()
	return f(handle)
}

// bringUp configures an interface's address and burst size and brings it up.
func bringUp(end relayEnd, own netip.Addr, bits int, peer netip.Addr, peerBits int, shape Link) error {
	err := inNetwork(end.PID, func(h *netlink.Handle) error {
		link, err := h.LinkByName(end.Interface)
		if err != nil {
			return err
		}
		address := &netlink.Addr{IPNet: ipNet(own, bits)}
		if bits == 32 {
			address.Peer = ipNet(peer, peerBits)
		}
		if err := h.AddrReplace(link, address); err != nil {
			return fmt.Errorf("address %s: %w", own, err)
		}
		return errors.Join(
			h.LinkSetMTU(link, linkMTU),
			h.LinkSetTxQLen(link, transmitQueue),
			h.LinkSetGSOMaxSize(link, burstSize(shape)),
			h.LinkSetUp(link),
		)
	})
	if err != nil {
		return fmt.Errorf("interface %s: %w", end.Interface, err)
	}
	return nil
}

// burstSize returns the largest packet that the kernel may pass to a link at once. On a lossy link each
// packet has to be lost separately, so there is no burst.
func burstSize(shape Link) int {
	const largest = 65536
	if shape.Loss > 0 {
		return linkMTU
	}
	if shape.BandwidthBitsPerSecond == units.Unlimited {
		return largest
	}
	return min(max(int(float64(shape.BandwidthBitsPerSecond)*burstTime/8), linkMTU), largest)
}

func setBurstSize(end relayEnd, shape Link) error {
	return inNetwork(end.PID, func(h *netlink.Handle) error {
		link, err := h.LinkByName(end.Interface)
		if err != nil {
			return fmt.Errorf("interface %s: %w", end.Interface, err)
		}
		return h.LinkSetGSOMaxSize(link, burstSize(shape))
	})
}

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, 32)}
}

func prefixNet(p netip.Prefix) *net.IPNet { return ipNet(p.Addr(), p.Bits()) }

// routeClient routes a client's packets on every node but one to the node to which it is attached.
func (s *state) routeClient(client *machine, at *machine) error {
	for _, node := range s.Nodes {
		if node == at {
			continue
		}
		err := inNetwork(node.PID, func(h *netlink.Handle) error {
			link, err := h.LinkByName(interfaceTo(at))
			if err != nil {
				return err
			}
			return h.RouteReplace(&netlink.Route{
				LinkIndex: link.Attrs().Index,
				Dst:       prefixNet(clientPrefix(client.Number)),
				Gw:        nodeAddress(at.Number).AsSlice(),
			})
		})
		if err != nil {
			return fmt.Errorf("route in %s to client %s: %w", node.Name, client.Name, err)
		}
	}
	return nil
}

// dropClientRoute removes a node's route to a client, before the client is attached there.
func dropClientRoute(node, client *machine) error {
	return inNetwork(node.PID, func(h *netlink.Handle) error {
		routes, err := h.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, route := range routes {
			if route.Dst == nil || route.Dst.String() != prefixNet(clientPrefix(client.Number)).String() {
				continue
			}
			if err := h.RouteDel(&route); err != nil {
				return fmt.Errorf("route in %s to client %s: %w", node.Name, client.Name, err)
			}
		}
		return nil
	})
}

// defaultRoute routes a client's packets to its node.
func defaultRoute(client *machine) error {
	return inNetwork(client.PID, func(h *netlink.Handle) error {
		link, err := h.LinkByName(clientInterface)
		if err != nil {
			return err
		}
		return h.RouteReplace(&netlink.Route{
			LinkIndex: link.Attrs().Index,
			Dst:       ipNet(netip.IPv4Unspecified(), 0),
			Gw:        gatewayAddress(client.Number).AsSlice(),
		})
	})
}

// onlyAddress assigns the address of a lab's only node; other nodes have theirs on their links.
func onlyAddress(node *machine) error {
	return inNetwork(node.PID, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.AddrReplace(lo, &netlink.Addr{IPNet: ipNet(nodeAddress(node.Number), 32)})
	})
}
