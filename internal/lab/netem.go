package lab

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/godwit/godwit/internal/units"
)

// netemWiring makes links of the kernel: a veth pair with the netem queueing discipline at both ends.
type netemWiring struct{}

// haveNetem tries netem in the network namespace of a process, on its loopback interface.
func haveNetem(pid int) bool {
	err := inNetwork(pid, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		discipline := netemFor(lo, Link{RTT: time.Millisecond})
		if err := h.QdiscReplace(discipline); err != nil {
			return err
		}
		return h.QdiscDel(discipline)
	})
	return err == nil
}

func (netemWiring) attach(w *wire, ends [2]relayEnd) error {
	peer, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/ns/net", ends[1].PID))
	if err != nil {
		return err
	}
	defer peer.Close()
	err = inNetwork(ends[0].PID, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = ends[0].Interface
		return h.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: ends[1].Interface, PeerNamespace: netlink.NsFd(peer),
		})
	})
	if err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	return nil
}

func (netemWiring) set(w *wire, ends [2]relayEnd) error {
	for i, end := range ends {
		hardware, err := hardwareAddress(ends[1-i])
		if err != nil {
			return err
		}
		err = inNetwork(end.PID, func(h *netlink.Handle) error {
			link, err := h.LinkByName(end.Interface)
			if err != nil {
				return err
			}
			if err := h.QdiscReplace(netemFor(link, w.Link)); err != nil {
				return fmt.Errorf("netem: %w", err)
			}
			return knowNeighbours(h, link, hardware)
		})
		if err != nil {
			return fmt.Errorf("interface %s: %w", end.Interface, err)
		}
	}
	return nil
}

func (n netemWiring) move(w *wire, from, to relayEnd) error {
	place, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/ns/net", to.PID))
	if err != nil {
		return err
	}
	defer place.Close()
	return inNetwork(from.PID, func(h *netlink.Handle) error {
		link, err := h.LinkByName(from.Interface)
		if err != nil {
			return fmt.Errorf("interface %s: %w", from.Interface, err)
		}
		return h.LinkSetNsFd(link, int(place))
	})
}

// detach does nothing: the pair disappears with the network namespace of the client. Only clients are
// detached.
func (netemWiring) detach(*wire) error { return nil }

func (netemWiring) counters(w *wire, ends [2]relayEnd) ([2]Counters, error) {
	var all [2]Counters
	for i, end := range ends {
		err := inNetwork(end.PID, func(h *netlink.Handle) error {
			link, err := h.LinkByName(end.Interface)
			if err != nil {
				return err
			}
			statistics := link.Attrs().Statistics
			all[i] = Counters{
				Packets: statistics.TxPackets, Bytes: statistics.TxBytes, QueueDrops: statistics.TxDropped,
			}
			return nil
		})
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// knowNeighbours adds a permanent neighbour entry for the other end's hardware address: a link that was
// down must not have to ask for it when it comes up, and a lossy link must not lose the question.
func knowNeighbours(h *netlink.Handle, link netlink.Link, hardware net.HardwareAddr) error {
	addresses, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		other := otherAddress(address)
		if other == nil {
			continue
		}
		err := h.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
			IP: other, HardwareAddr: hardware,
		})
		if err != nil {
			return fmt.Errorf("neighbour %s: %w", other, err)
		}
	}
	return nil
}

// otherAddress returns the address at the other end: the peer's between nodes, .1 or .2 between a node and
// a client.
func otherAddress(address netlink.Addr) net.IP {
	if address.Peer != nil && !address.Peer.IP.Equal(address.IP) {
		return address.Peer.IP
	}
	own := address.IP.To4()
	if own == nil {
		return nil
	}
	return net.IPv4(own[0], own[1], own[2], 3-own[3])
}

func hardwareAddress(end relayEnd) (hardware net.HardwareAddr, err error) {
	err = inNetwork(end.PID, func(h *netlink.Handle) error {
		link, err := h.LinkByName(end.Interface)
		if err != nil {
			return fmt.Errorf("interface %s: %w", end.Interface, err)
		}
		hardware = link.Attrs().HardwareAddr
		if len(hardware) == 0 {
			return errors.New("no hardware address")
		}
		return nil
	})
	return hardware, err
}

// netemFor describes a link to the kernel. Its limit is in packets, under way and waiting.
func netemFor(link netlink.Link, shape Link) *netlink.Netem {
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
		Parent: netlink.HANDLE_ROOT}
	loss := float32(shape.Loss * 100)
	if shape.Down {
		loss = 100
	}
	discipline := netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{
		Latency: uint32(shape.RTT / 2 / time.Microsecond),
		Jitter:  uint32(shape.Jitter / 2 / time.Microsecond),
		Loss:    loss,
		Rate64:  uint64(shape.BandwidthBitsPerSecond) / 8,
		Limit:   netemLimit(shape),
	})
	return discipline
}

func netemLimit(shape Link) uint32 {
	const most = 100_000
	if shape.BandwidthBitsPerSecond == units.Unlimited {
		return most
	}
	held := max(shape.RTT, minQueueTime) + shape.RTT/2 + shape.Jitter
	packets := held.Seconds() * float64(shape.BandwidthBitsPerSecond) / 8 / linkMTU
	return uint32(math.Min(math.Max(packets, 16), most))
}
