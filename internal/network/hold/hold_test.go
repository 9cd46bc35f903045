package hold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
)

var held = netip.MustParseAddr("10.88.1.2")

// pipes is a network whose devices are channels.
type pipes struct {
	set *Set

	mu      sync.Mutex
	opened  []*pipe
	route   string // of the address
	refuses error  // the error of every change
}

func newPipes() *pipes {
	p := &pipes{}
	p.set = NewSet(1<<20, p)
	return p
}

func (p *pipes) Known(ip netip.Addr) error {
	if ip != held {
		return errors.New("unknown")
	}
	return nil
}

func (p *pipes) Open(netip.Addr) (Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	device := &pipe{network: p, in: make(chan []byte), closed: make(chan struct{})}
	p.opened = append(p.opened, device)
	return device, p.refuses
}

func (p *pipes) Switch(_ netip.Addr, to Destination) error { return p.change(to.String()) }

// change sets the route. As the network does, it looks for holds under its lock.
func (p *pipes) change(route string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.set.Has(held) {
		return errors.New("the hold has ended too early")
	}
	if p.refuses == nil {
		p.route = route
	}
	return p.refuses
}

// routeElsewhere routes the address if it is not held.
func (p *pipes) routeElsewhere() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.set.Holding(held) {
		p.route = "elsewhere"
	}
}

func (p *pipes) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = err
}

// pipe is a device.
type pipe struct {
	network *pipes
	in      chan []byte
	closed  chan struct{}
	once    sync.Once

	mu  sync.Mutex
	led Destination
	out []string // destination and number of each packet
}

func (p *pipe) Read(packet []byte) (int, error) {
	select {
	case next := <-p.in:
		return copy(packet, next), nil
	case <-p.closed:
		return 0, io.EOF
	}
}

func (p *pipe) Write(packet []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = append(p.out, fmt.Sprint(p.led, ": ", binary.BigEndian.Uint16(packet[20:])))
	return len(packet), nil
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipe) Lead(to Destination) error {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network.refuses == nil {
		p.led = to
	}
	return p.network.refuses
}

func (p *pipe) Redirect() error { return p.network.change("device") }

// come delivers packets with these numbers, and returns when the hold has handled them.
func (p *pipe) come(numbers ...int) {
	for _, number := range numbers {
		packet := make([]byte, 22)
		packet[0] = 0x45
		copy(packet[16:], held.AsSlice())
		binary.BigEndian.PutUint16(packet[20:], uint16(number))
		p.in <- packet
	}
	p.in <- nil // read only after the previous packet was handled
}

// sent checks which packets have been sent so far.
func (p *pipe) sent(t *testing.T, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.out, want) {
		t.Errorf("sent %q, want %q", p.out, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start holds the address.
func (p *pipes) start(t *testing.T) (*Hold, *pipe) {
	t.Helper()
	hold, err := p.set.Prepare(held)
	must(t, err)
	must(t, hold.Start())
	return hold, p.opened[len(p.opened)-1]
}

func TestPacketsWaitAndGoOnInOrder(t *testing.T) {
	p := newPipes()
	defer p.set.Close()
	hold, device := p.start(t)
	if again, err := p.set.Prepare(held); err != nil || again != hold {
		t.Errorf("another hold: %v", err)
	}
	device.come(1, 2, 3)
	device.sent(t)
	must(t, hold.Release(t.Context(), Destination{Peer: "b"}, 0))
	device.sent(t, "node b: 1", "node b: 2", "node b: 3")
	if p.route != "node b" || p.set.Has(held) || p.set.Holding(held) || len(p.set.Addresses()) != 0 {
		t.Errorf("the hold goes on, and the route is to %s", p.route)
	}
	stats := hold.Stats()
	if stats.HeldPackets != 3 || stats.ForwardedPackets != 3 || stats.DroppedPackets != 0 {
		t.Errorf("%+v", stats)
	}
}

// TestFailedReleaseKeepsPackets makes the network fail when the destination is set, and when the route is
// switched.
func TestFailedReleaseKeepsPackets(t *testing.T) {
	p := newPipes()
	defer p.set.Close()
	hold, device := p.start(t)
	device.come(1)
	broken := errors.New("broken")
	p.refuse(broken)
	if err := hold.Release(t.Context(), Destination{Peer: "b"}, 0); !errors.Is(err, broken) {
		t.Errorf("release: %v", err)
	}
	if err := hold.end(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("switch: %v", err)
	}
	device.come(2)
	if !p.set.Holding(held) || hold.Stats().QueuedPackets == 0 {
		t.Errorf("not held any more: %+v", hold.Stats())
	}
	p.refuse(nil)
	must(t, hold.Release(t.Context(), Destination{Container: "one"}, 0))
	if got := hold.Stats(); got.ForwardedPackets != 2 || got.DroppedPackets != 0 {
		t.Errorf("%+v", got)
	}
}

func TestFailedStartHoldsNothing(t *testing.T) {
	p := newPipes()
	defer p.set.Close()
	broken := errors.New("broken")
	p.refuse(broken)
	if _, err := p.set.Prepare(held); !errors.Is(err, broken) || p.set.Has(held) {
		t.Errorf("prepare: %v", err)
	}
	p.refuse(nil)
	hold, err := p.set.Prepare(held)
	must(t, err)
	p.refuse(broken)
	if err := hold.Start(); !errors.Is(err, broken) || p.set.Holding(held) {
		t.Errorf("start: %v", err)
	}
	p.refuse(nil)
	must(t, hold.Start())
	if !p.set.Holding(held) || p.route != "device" {
		t.Errorf("the route is to %s", p.route)
	}
	must(t, hold.Close())
	if _, err := p.set.Prepare(netip.MustParseAddr("8.8.8.8")); err == nil {
		t.Error("an unknown address was held")
	}
	if none, err := p.set.Prepare(netip.Addr{}); none != nil || err != nil || none.Start() != nil {
		t.Errorf("hold of no address: %v", err)
	}
}

// TestEndedHoldChangesNothing checks that the next hold of an address waits until the previous device is
// gone.
func TestEndedHoldChangesNothing(t *testing.T) {
	p := newPipes()
	defer p.set.Close()
	first, device := p.start(t)
	must(t, first.Close())
	if err := first.StartNew(Destination{Peer: "b"}); err == nil ||
		!strings.Contains(err.Error(), "has ended") {
		t.Errorf("start: %v", err)
	}
	if err := first.Release(t.Context(), Destination{Peer: "b"}, 0); err == nil {
		t.Error("released after the end")
	}
	second, _ := p.start(t)
	select {
	case <-device.closed:
	default:
		t.Error("two devices of one address")
	}
	if second == first || !slices.Equal(p.set.Addresses(), []netip.Addr{held}) {
		t.Errorf("held: %v, want %v once, anew", p.set.Addresses(), held)
	}
}

// TestStartBesideRoute checks that a held address is not routed elsewhere, whichever call comes first.
func TestStartBesideRoute(t *testing.T) {
	for range 200 {
		p := newPipes()
		hold, err := p.set.Prepare(held)
		must(t, err)
		var both sync.WaitGroup
		both.Go(p.routeElsewhere)
		both.Go(func() {
			if err := hold.Start(); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if p.route != "device" {
			t.Fatalf("the route of the held address is to %q", p.route)
		}
		p.set.Close()
	}
}
