package hold

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Network is what holds need of the node's network. Its methods take the network's lock. Under that
// lock, the network in turn may call the methods of holds that only look: see Set.
type Network interface {
	// Known refuses an address unless it belongs to a container whose packets pass through this network.
	Known(ip netip.Addr) error
	// Open makes the device of a hold. Nothing is routed into the device yet.
	Open(ip netip.Addr) (Device, error)
	// Switch makes the address's packets go to the destination, without a hold.
	Switch(ip netip.Addr, to Destination) error
}

// Device is the device of a held address. Read returns packets that were routed into it. Write sends
// packets to the destination that Lead has set.
type Device interface {
	io.ReadWriteCloser
	// Lead makes packets that are written to the device go to the destination.
	Lead(to Destination) error
	// Redirect makes the address's packets go into the device.
	Redirect() error
}

// Set is the holds of a node. Holding, Has and Addresses may be called under the network's lock.
type Set struct {
	network Network
	limit   int64 // of bytes in each queue

	preparing sync.Mutex // one Prepare at a time

	mu         sync.Mutex
	current    map[netip.Addr]*Hold         // not yet switched
	lingering  map[netip.Addr]chan struct{} // switched; closed when their devices are gone
	background sync.WaitGroup
}

// NewSet returns the holds of a node: none yet. Limit is the size of each queue in bytes.
func NewSet(limit int64, network Network) *Set {
	return &Set{network: network, limit: limit, current: map[netip.Addr]*Hold{},
		lingering: map[netip.Addr]chan struct{}{}}
}

// Prepare makes everything that a hold needs, so that Start takes a single change of a route. Nothing is
// held yet. An address that is already prepared or held gets the same Hold.
func (s *Set) Prepare(ip netip.Addr) (*Hold, error) {
	if !ip.IsValid() {
		return nil, nil //nolint:nilnil // a nil Hold holds nothing
	}
	for {
		s.preparing.Lock()
		if err := s.network.Known(ip); err != nil {
			s.preparing.Unlock()
			return nil, fmt.Errorf("hold: %w", err)
		}
		gone, lingers := s.lingers(ip)
		if !lingers {
			break
		}
		s.preparing.Unlock()
		<-gone // the device's name is in use until then; lingerQuiet after the last straggler
	}
	defer s.preparing.Unlock()
	if hold := s.get(ip); hold != nil {
		return hold, nil
	}
	device, err := s.network.Open(ip)
	if err != nil {
		return nil, fmt.Errorf("prepare to hold %s: %w", ip, err)
	}
	hold := &Hold{set: s, ip: ip, device: device, queue: newQueue(s.limit), stats: Stats{Address: ip}}
	hold.reader.Add(1)
	go hold.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current[ip] = hold
	return hold, nil
}

// lingers reports whether an earlier hold of the address still has its device, and returns a channel that
// is closed when the device is gone.
func (s *Set) lingers(ip netip.Addr) (gone <-chan struct{}, lingers bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone, lingers = s.lingering[ip]
	return gone, lingers
}

// get returns the hold of an address that is prepared or held, or nil.
func (s *Set) get(ip netip.Addr) *Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current[ip]
}

// Has reports whether the address is prepared or held.
func (s *Set) Has(ip netip.Addr) bool { return s.get(ip) != nil }

// Holding reports whether the address's packets wait.
func (s *Set) Holding(ip netip.Addr) bool {
	hold := s.get(ip)
	if hold == nil {
		return false
	}
	hold.mu.Lock()
	defer hold.mu.Unlock()
	return hold.started
}

// Addresses returns the addresses that are prepared or held.
func (s *Set) Addresses() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.current))
}

// Close gives up the holds, whose packets are lost, and waits until released holds have forwarded their
// last packets.
func (s *Set) Close() {
	for _, ip := range s.Addresses() {
		if hold := s.get(ip); hold != nil {
			hold.abandon()
		}
	}
	s.background.Wait()
}
