package cluster

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/patience"

	"github.com/godwit/godwit/internal/guard"
)

const (
	hostsEvery     = time.Minute
	lookupTimeout  = 5 * time.Second
	maxOfOneHost   = 16 // addresses
	lookupsAtATime = 4
)

// Hosts are the addresses of the host names by which nodes are known. They are looked up in the background:
// a lookup in Known would block the port of the node.
type Hosts struct {
	nodes  *Nodes
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	mu        sync.Mutex
	addresses map[string][]netip.Addr
}

func newHosts(nodes *Nodes) *Hosts {
	lookup := func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	return &Hosts{nodes: nodes, lookup: lookup, addresses: map[string][]netip.Addr{}}
}

// refresh looks up all names, and forgets other names. A name that cannot be looked up now keeps its
// addresses.
func (h *Hosts) refresh(ctx context.Context, names []string) {
	places := make(chan struct{}, lookupsAtATime)
	var all sync.WaitGroup
	for _, name := range names {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
			defer cancel()
			_ = guard.Do(func() error {
				found, err := h.lookup(ctx, name)
				if err == nil {
					h.learn(name, found)
				}
				return err
			})
		})
	}
	all.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.addresses {
		if !slices.Contains(names, name) {
			delete(h.addresses, name)
		}
	}
}

func (h *Hosts) learn(name string, found []netip.Addr) {
	addresses := make([]netip.Addr, 0, maxOfOneHost)
	for _, address := range found[:min(len(found), maxOfOneHost)] {
		addresses = append(addresses, address.Unmap())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addresses[name] = addresses
}

func (h *Hosts) has(name string, address netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.addresses[name], address)
}

// Keep looks up the host names of other nodes at intervals, until ctx ends.
func (h *Hosts) Keep(ctx context.Context) {
	for {
		h.refresh(ctx, h.names())
		if patience.Until(ctx, time.Now().Add(hostsEvery)) != nil {
			return
		}
	}
}

// names returns the addresses of other nodes that are host names.
func (h *Hosts) names() (names []string) {
	for _, node := range h.nodes.Others() {
		host, _, err := net.SplitHostPort(node.Address)
		_, numeric := netip.ParseAddr(host)
		if err == nil && numeric != nil && !slices.Contains(names, host) {
			names = append(names, host)
		}
	}
	return names
}

// Known reports whether another node of the cluster has an IP address.
func (h *Hosts) Known(address string) bool {
	asked, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	asked = asked.Unmap()
	for _, node := range h.nodes.Others() {
		host, _, err := net.SplitHostPort(node.Address)
		if err != nil {
			continue
		}
		own, numeric := netip.ParseAddr(host)
		if numeric == nil && own.Unmap() == asked || numeric != nil && h.has(host, asked) {
			return true
		}
	}
	return false
}
