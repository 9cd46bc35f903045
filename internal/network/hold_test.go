package network

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listen opens a UDP socket with a large buffer in a namespace.
func (s *site) listen(where string, at netip.AddrPort) *net.UDPConn {
	s.t.Helper()
	var socket *net.UDPConn
	s.in(where, func() error {
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE,
					64<<20); err != nil {
					s.t.Error(err)
				}
			})
		}}
		opened, err := config.ListenPacket(context.Background(), "udp4", at.String())
		if err == nil {
			socket = opened.(*net.UDPConn)
		}
		return err
	})
	s.t.Cleanup(func() { _ = socket.Close() })
	return socket
}

// sequence is a stream of numbered datagrams from one sender.
type sequence struct {
	sent    atomic.Uint32
	stop    atomic.Bool
	stopped chan error
}

// send sends numbered datagrams from a namespace to an address until it is told to stop.
func (s *site) send(where string, to netip.AddrPort) *sequence {
	s.t.Helper()
	var socket net.Conn
	s.in(where, func() (err error) {
		socket, err = net.Dial("udp4", to.String())
		return err
	})
	q := &sequence{stopped: make(chan error, 1)}
	go func() {
		defer func() { _ = socket.Close() }()
		payload := make([]byte, 200)
		for !q.stop.Load() {
			for range 10 {
				binary.BigEndian.PutUint32(payload, q.sent.Load())
				if _, err := socket.Write(payload); err != nil {
					q.stopped <- err
					return
				}
				q.sent.Add(1)
			}
			time.Sleep(time.Millisecond) // a pace, not a synchronisation
		}
		q.stopped <- nil
	}()
	return q
}

// receive checks that the numbers from first up to last, exclusive, come in order. If last is 0, receive
// returns when nothing has come for quiet.
func receive(t *testing.T, socket *net.UDPConn, first, last uint32, quiet time.Duration) (next uint32) {
	t.Helper()
	buffer := make([]byte, 1500)
	for next = first; last == 0 || next < last; next++ {
		if err := socket.SetReadDeadline(time.Now().Add(quiet)); err != nil {
			t.Fatal(err)
		}
		count, err := socket.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && last == 0 {
			return next
		}
		if err != nil || count < 4 {
			t.Fatalf("packet %d of %d: %d bytes, %v", next, last, count, err)
		}
		if got := binary.BigEndian.Uint32(buffer); got != next {
			t.Fatalf("got packet %d, want %d", got, next)
		}
	}
	return next
}

// receiveAll checks that each number from first to last comes exactly once, and returns how many were
// overtaken.
func receiveAll(t *testing.T, socket *net.UDPConn, first, last uint32) (overtaken int64) {
	t.Helper()
	buffer := make([]byte, 1500)
	seen := make(map[uint32]bool, last-first)
	highest := first
	for len(seen) < int(last-first) {
		if err := socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		count, err := socket.Read(buffer)
		if err != nil || count < 4 {
			t.Fatalf("%d of %d packets: %d bytes, %v", len(seen), last-first, count, err)
		}
		got := binary.BigEndian.Uint32(buffer)
		if got < first || got >= last || seen[got] {
			t.Fatalf("got packet %d again, or out of [%d, %d)", got, first, last)
		}
		seen[got] = true
		if got < highest {
			overtaken++
		}
		highest = max(highest, got)
	}
	return overtaken
}

func TestHoldAndForwardKeepsEveryPacketInOrder(t *testing.T) {
	for from, enough := range map[string]int64{"client-a": 10000, "a": 2000, "c": 2000} {
		t.Run("from "+from, func(t *testing.T) {
			s := newSite(t)
			a, b := s.nodes["a"], s.nodes["b"]
			address := s.container("a", "one")
			server := netip.AddrPortFrom(address.IP, 7000)
			atA := s.listen("a/one", server)
			stream := s.send(from, server)
			eventually(t, "500 packets", func() bool { return stream.sent.Load() >= 500 })

			hold, err := a.Hold(address.IP)
			must(t, err)
			if err := a.Route(address.IP, Via("b")); !errors.Is(err, ErrHeld) {
				t.Errorf("route of a held address: %v", err)
			}
			next := receive(t, atA, 0, 0, 100*time.Millisecond)
			s.attach("b", "one", address)
			atB := s.listen("b/one", server)
			eventually(t, "enough held packets", func() bool { return hold.Stats().QueuedPackets >= enough })
			must(t, b.Route(address.IP, Local("one")))
			must(t, hold.Release(t.Context(), Via("b"), 0))
			mark := stream.sent.Load()
			eventually(t, "1000 more packets", func() bool { return stream.sent.Load() >= mark+1000 })
			stream.stop.Store(true)
			must(t, <-stream.stopped)
			overtaken := receiveAll(t, atB, next, stream.sent.Load())
			receive(t, atB, stream.sent.Load(), 0, 100*time.Millisecond) // no number comes twice
			stats := hold.Stats()
			// Packets that come at the very moment of the switch may be overtaken, and packets that another
			// processor is handling then.
			if overtaken > stats.LatePackets+100 {
				t.Errorf("%d packets were overtaken, and only %d came in the instant of the switch",
					overtaken, stats.LatePackets)
			}
			if stats.DroppedPackets != 0 || stats.ForwardedPackets != stats.HeldPackets ||
				stats.LongestHoldSeconds <= 0 {
				t.Errorf("%+v", stats)
			}
		})
	}
}

// TestHoldPing: an echo request waits too, and is answered after the release.
func TestHoldPing(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	hold, err := s.nodes["a"].Hold(address.IP)
	must(t, err)
	var socket net.PacketConn
	s.in("client-b", func() (err error) {
		socket, err = net.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	})
	defer func() { _ = socket.Close() }()
	// echo request with checksum, identifier 1, sequence 1 (RFC 792)
	request := []byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}
	_, err = socket.WriteTo(request, &net.IPAddr{IP: address.IP.AsSlice()})
	must(t, err)
	eventually(t, "the request is held", func() bool { return hold.Stats().QueuedPackets == 1 })
	must(t, hold.Release(t.Context(), Local("one"), 0))
	must(t, socket.SetReadDeadline(time.Now().Add(5*time.Second)))
	answer := make([]byte, 100)
	count, _, err := socket.ReadFrom(answer)
	if err != nil || count != len(request) || answer[0] != 0 {
		t.Errorf("answer %x, %v", answer[:count], err)
	}
}

// TestHoldsOfTwoBridges holds addresses of two bridges that differ in their first byte only. Ending one
// hold must not affect the other.
func TestHoldsOfTwoBridges(t *testing.T) {
	s := newSite(t)
	n := s.nodes["a"]
	one, other := netip.MustParseAddr("172.20.0.2"), netip.MustParseAddr("10.20.0.2")
	n.records.put(bridged{Container: "one", Address: one})
	n.records.put(bridged{Container: "other", Address: other})
	first, err := n.Prepare(one)
	must(t, err)
	second, err := n.Prepare(other)
	must(t, err)
	firstTable, secondTable := n.tableOf(one), n.tableOf(other)
	must(t, first.Close())
	eventually(t, "the end of the first hold", func() bool { return n.tableOf(one) == 0 })
	must(t, n.Reconcile(Keep{}))
	rules, err := n.links.RuleList(unix.AF_INET)
	must(t, err)
	routes, err := n.routes.List()
	must(t, err)
	if !slices.ContainsFunc(rules, func(r netlink.Rule) bool {
		return r.IifName == "gwhold0a140002" && r.Table == secondTable
	}) {
		t.Error("the second hold has no rule")
	}
	if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Table == secondTable }) {
		t.Error("the second hold has no route")
	}
	must(t, second.Close())
	third, err := n.Prepare(one)
	must(t, err)
	if table := n.tableOf(one); table == secondTable || table != firstTable {
		t.Errorf("tables %x, %x and %x", firstTable, secondTable, table)
	}
	must(t, third.Close())
}

// tableOf returns the routing table of the hold of an address, or 0.
func (n *Network) tableOf(ip netip.Addr) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for number, t := range n.devices.tables {
		if t.ip == ip {
			return number
		}
	}
	return 0
}
