package intake

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// closeAfter lets a caller read the last answer before its connection is closed.
	closeAfter = 200 * time.Millisecond
	// logEvery bounds the log: somebody may connect thousands of times a second.
	logEvery = 10 * time.Second
	// siteBits is the part of an IPv6 address that is the same for all addresses of a machine, or a site.
	siteBits = 64
)

// Limits of connections.
type Limits struct {
	// Strangers is how many connections may be open whose callers are not known yet; StrangersPerHost is
	// how many of them may come from one address.
	Strangers, StrangersPerHost int
	// Patience is how long a connection may be open before its caller is known.
	Patience time.Duration
	// Refusals is how many calls of a connection may be refused in a row before it is closed.
	Refusals int
}

// Connections counts the open connections of a server.
type Connections struct {
	limits Limits
	log    *slog.Logger

	mu        sync.Mutex
	strangers int
	hosts     map[string]int // strangers, by host
	callers   map[string]int // connections of known callers
	turned    int            // connections that were turned away and are not logged yet
	logged    time.Time
}

// NewConnections returns the count of a new server.
func NewConnections(limits Limits, log *slog.Logger) *Connections {
	return &Connections{limits: limits, log: log, hosts: map[string]int{}, callers: map[string]int{}}
}

// Listener returns a listener that closes connections over the limits at once. Serve it with Credentials.
func (c *Connections) Listener(inner net.Listener) net.Listener { return listener{inner, c} }

type listener struct {
	net.Listener
	connections *Connections
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if one := l.connections.enter(raw); one != nil {
			return one, nil
		}
		raw.Close()
	}
}

// enter counts a connection; nil: it is one too many.
func (c *Connections) enter(raw net.Conn) *Connection {
	host := hostOf(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.strangers >= c.limits.Strangers || c.hosts[host] >= c.limits.StrangersPerHost {
		c.turned++
		if now := time.Now(); now.Sub(c.logged) >= logEvery {
			c.log.Warn("connections closed: too many whose callers are not known yet", "closed", c.turned,
				"last_from", host, "open", c.strangers, "open_from_it", c.hosts[host])
			c.logged, c.turned = now, 0
		}
		return nil
	}
	c.strangers++
	c.hosts[host]++
	one := &Connection{Conn: raw, of: c, host: host}
	one.patience = time.AfterFunc(c.limits.Patience, one.expire)
	return one
}

// hostOf is the address from which a connection comes; of IPv6, the network.
func hostOf(raw net.Conn) string {
	text := raw.RemoteAddr().String()
	parsed, err := netip.ParseAddrPort(text)
	if err != nil {
		return text
	}
	address := parsed.Addr().Unmap()
	if address.Is6() {
		if site, err := address.WithZone("").Prefix(siteBits); err == nil {
			return site.String()
		}
	}
	return address.String()
}

// Connection is an open connection.
type Connection struct {
	net.Conn
	of       *Connections
	host     string
	patience *time.Timer

	// Guarded by the mutex of of.
	caller   string // empty: it is not known yet
	refusals int    // in a row
	closed   bool
}

// Close implements net.Conn.
func (c *Connection) Close() error {
	c.leave()
	return c.Conn.Close()
}

func (c *Connection) leave() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.caller == "" {
		c.admitted()
	} else if c.of.callers[c.caller]--; c.of.callers[c.caller] == 0 {
		delete(c.of.callers, c.caller)
	}
}

// admitted makes the connection no stranger's.
func (c *Connection) admitted() {
	c.patience.Stop()
	c.of.strangers--
	if c.of.hosts[c.host]--; c.of.hosts[c.host] == 0 {
		delete(c.of.hosts, c.host)
	}
}

// expire closes the connection if its caller is still not known.
func (c *Connection) expire() {
	c.of.mu.Lock()
	known := c.caller != ""
	c.of.mu.Unlock()
	if !known {
		c.Close()
	}
}

// Known notes who the caller is. The first caller of a connection counts. Error: it has too many connections.
func (c *Connection) Known(caller string, most int) error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.caller == "" && !c.closed {
		if c.of.callers[caller] >= most {
			return status.Errorf(codes.ResourceExhausted, "%s has %d connections; the limit is %d", caller,
				c.of.callers[caller], most)
		}
		c.admitted()
		c.caller = caller
		c.of.callers[caller]++
	}
	c.refusals = 0
	return nil
}

// Refused notes that a call of the connection was refused, or may be. A connection that goes on is closed.
// Error: it went on.
func (c *Connection) Refused() error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.refusals++
	if c.refusals < c.of.limits.Refusals {
		return nil
	}
	if c.refusals == c.of.limits.Refusals {
		time.AfterFunc(closeAfter, func() { c.Close() })
	}
	return status.Errorf(codes.ResourceExhausted,
		"%d calls of this connection were refused, so the connection is being closed", c.refusals)
}

// AuthInfo is what a handshake has shown, and the connection.
type AuthInfo struct {
	credentials.TLSInfo
	Connection *Connection
}

// From returns what a caller has shown in its handshake.
func From(ctx context.Context) (AuthInfo, bool) {
	caller, found := peer.FromContext(ctx)
	if !found {
		return AuthInfo{}, false
	}
	info, ok := caller.AuthInfo.(AuthInfo)
	return info, ok
}

// Credentials makes TLS credentials for the connections of a Listener. From finds what they have shown.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return counted{inner}
}

type counted struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (c counted) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	connection, ok := raw.(*Connection)
	if !ok {
		return nil, nil, fmt.Errorf("a connection from %s was not counted", raw.RemoteAddr())
	}
	secured, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	shown, ok := info.(credentials.TLSInfo)
	if !ok {
		return nil, nil, fmt.Errorf("a connection from %s does not use TLS", raw.RemoteAddr())
	}
	return secured, AuthInfo{shown, connection}, nil
}

// Clone implements credentials.TransportCredentials.
func (c counted) Clone() credentials.TransportCredentials {
	return counted{c.TransportCredentials.Clone()}
}
