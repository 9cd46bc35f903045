package wire

import (
	"errors"
	"net"
	"sync"
)

var errTooManyHandshakes = errors.New("too many peers are in the middle of their handshakes")

// gate limits how many peers can be between connecting and having said who they are.
type gate struct {
	max, maxPerHost int

	mu    sync.Mutex
	hosts map[string]int
	conns map[net.Conn]string
}

func newGate(limit, perHost int) *gate {
	return &gate{max: limit, maxPerHost: perHost, hosts: map[string]int{}, conns: map[net.Conn]string{}}
}

func (g *gate) enter(conn net.Conn) error {
	host := conn.RemoteAddr().String()
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.conns) >= g.max || g.hosts[host] >= g.maxPerHost {
		return errTooManyHandshakes
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
	if g.hosts[host]--; g.hosts[host] == 0 {
		delete(g.hosts, host)
	}
}

// closeAll ends all handshakes.
func (g *gate) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.conns {
		conn.Close()
	}
}
