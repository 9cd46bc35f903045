package wire

import (
	"errors"
	"net"
	"sync"
)

var errTooManyHandshakes = errors.New("too many peers are in the middle of their handshakes")

// gate limits the number of peers that have connected but not identified themselves yet. Known hosts have
// slots of their own, so strangers cannot keep them out.
type gate struct {
	max, maxPerHost int
	known           func(host string) bool

	mu        sync.Mutex
	hosts     map[string]int
	conns     map[net.Conn]string
	strangers map[net.Conn]bool
}

func newGate(limit, perHost int, known func(host string) bool) *gate {
	if known == nil {
		known = func(string) bool { return false }
	}
	return &gate{
		max: limit, maxPerHost: perHost, known: known, hosts: map[string]int{}, conns: map[net.Conn]string{},
		strangers: map[net.Conn]bool{},
	}
}

func (g *gate) enter(conn net.Conn) error {
	host := conn.RemoteAddr().String()
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	known := g.known(host)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hosts[host] >= g.maxPerHost || (!known && len(g.strangers) >= g.max) {
		return errTooManyHandshakes
	}
	if !known {
		g.strangers[conn] = true
	}
	g.hosts[host]++
	g.conns[conn] = host
	return nil
}

func (g *gate) leave(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	host, ok := g.conns[conn]
	if !ok {
		return
	}
	delete(g.conns, conn)
	delete(g.strangers, conn)
	if g.hosts[host]--; g.hosts[host] == 0 {
		delete(g.hosts, host)
	}
}

// closeAll aborts all handshakes.
func (g *gate) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.conns {
		conn.Close()
	}
}
