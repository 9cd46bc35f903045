package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
)

// deliverTimeout bounds how long a connection waits for its Accept.
const deliverTimeout = 10 * time.Second

// ListenOptions configure a Listener.
type ListenOptions struct {
	Identity *identity.Identity
	// Server answers nodes that want to join or renew; nil: they are refused.
	Server *identity.Server
	// Log receives the reasons for failed connections; nil: they are not logged.
	Log func(error)
	// MaxHandshakes limits the peers that have not identified themselves yet, and MaxHandshakesPerHost
	// limits those from one address, so that no single host can keep the others out. 0: 128 and 16.
	MaxHandshakes        int
	MaxHandshakesPerHost int
	// Known reports whether an IP address is that of a node of the cluster. Nodes have slots in addition to
	// MaxHandshakes.
	Known func(host string) bool
	// Handshake aborts longer handshakes; zero: 10 s without a byte, and 40 s in all.
	Handshake patience.Limit
}

// Listener serves all connections to a node's port.
type Listener struct {
	options ListenOptions
	config  *tls.Config
	tcp     net.Listener
	gate    *gate
	control *queue
	data    *queue

	done      chan struct{}
	closeOnce sync.Once
	running   sync.WaitGroup
}

// Listen opens a node's port and starts to serve it.
func Listen(ctx context.Context, address string, o ListenOptions) (*Listener, error) {
	if o.MaxHandshakes == 0 {
		o.MaxHandshakes = 128
	}
	if o.MaxHandshakesPerHost == 0 {
		o.MaxHandshakesPerHost = 16
	}
	if o.Handshake == (patience.Limit{}) {
		o.Handshake = handshakeLimit
	}
	if o.Log == nil {
		o.Log = func(error) {}
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive(controlTimeout)}
	config.SetMultipathTCP(false) // MPTCP lacks some of TCP_INFO, TCP_USER_TIMEOUT and so on
	tcp, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for other nodes: %w", err)
	}
	l := &Listener{
		options: o, config: serverConfig(o.Identity), tcp: tcp,
		gate: newGate(o.MaxHandshakes, o.MaxHandshakesPerHost, o.Known),
		done: make(chan struct{}),
	}
	l.control, l.data = newQueue(l), newQueue(l)
	l.running.Go(l.serve)
	return l, nil
}

// Addr returns the address on which the listener listens.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Control returns the listener of the gRPC connections, to be served with ServerOptions.
func (l *Listener) Control() net.Listener { return l.control }

// AcceptData waits for the next data connection.
func (l *Listener) AcceptData(ctx context.Context) (*Conn, error) {
	return l.data.accept(ctx.Done(), ctx.Err)
}

// Close stops listening, aborts handshakes that are under way and waits for them. Accepted connections stay
// open.
func (l *Listener) Close() error {
	l.closeOnce.Do(func() { close(l.done) })
	err := l.tcp.Close()
	l.gate.closeAll()
	l.running.Wait()
	return err
}

func (l *Listener) serve() {
	for {
		conn, err := l.tcp.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// The process may have run out of descriptors, for example: keep the port open.
			l.options.Log(fmt.Errorf("accept a connection: %w", err))
			if !l.pause(100 * time.Millisecond) {
				return
			}
			continue
		}
		if err := l.gate.enter(conn); err != nil {
			l.options.Log(fmt.Errorf("connection from %s refused: %w", conn.RemoteAddr(), err))
			conn.Close()
			continue
		}
		l.running.Go(func() {
			err := guard.Do(func() error {
				l.handle(conn.(*net.TCPConn))
				return nil
			})
			if err != nil {
				l.gate.leave(conn)
				conn.Close()
				l.options.Log(fmt.Errorf("connection from %s: %w", conn.RemoteAddr(), err))
			}
		})
	}
}

// pause waits, and reports whether the listener is still open.
func (l *Listener) pause(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

// handle identifies a peer and the protocol that it wants.
func (l *Listener) handle(tcp *net.TCPConn) {
	conn, protocol, err := l.handshake(tcp)
	if err != nil {
		l.gate.leave(tcp)
		tcp.Close()
		if !errors.Is(err, io.EOF) { // a port scan or a health check: do not log
			l.options.Log(fmt.Errorf("handshake with %s: %w", tcp.RemoteAddr(), explain(err)))
		}
		return
	}
	switch protocol {
	case controlProtocol, dataProtocol:
		l.gate.leave(tcp)
		l.deliver(conn, protocol)
	default:
		defer l.gate.leave(tcp) // counts as a handshake until it is over
		l.serveIdentity(conn, protocol)
	}
}

func (l *Listener) handshake(tcp *net.TCPConn) (*Conn, string, error) {
	raw := newRawConn(tcp)
	conn := &Conn{Conn: tls.Server(raw, l.config), raw: raw}
	if err := conn.handshake(context.Background(), l.options.Handshake); err != nil {
		return nil, "", err
	}
	state := conn.ConnectionState()
	timeout := controlTimeout
	switch state.NegotiatedProtocol {
	case identity.JoinProtocol:
		return conn, state.NegotiatedProtocol, nil
	case dataProtocol:
		timeout = dataTimeout
	}
	var err error
	if conn.peer, err = peerOf(state); err != nil {
		return nil, "", err
	}
	if err := tune(tcp, timeout); err != nil {
		return nil, "", err
	}
	return conn, state.NegotiatedProtocol, conn.attend(l.options.Identity)
}

func (l *Listener) deliver(conn *Conn, protocol string) {
	queue := l.control
	if protocol == dataProtocol {
		queue = l.data
	}
	timer := time.NewTimer(deliverTimeout)
	defer timer.Stop()
	select {
	case queue.conns <- conn:
		return
	case <-l.done:
	case <-queue.closed:
	case <-timer.C:
		l.options.Log(fmt.Errorf("connection of node %s (%s) was not accepted in %s", conn.peer, protocol,
			deliverTimeout))
	}
	conn.leave()
	conn.raw.Close()
}

func (l *Listener) serveIdentity(conn *Conn, protocol string) {
	defer conn.Close()
	server := l.options.Server
	if server == nil {
		return
	}
	var err error
	if protocol == identity.JoinProtocol {
		err = server.ServeJoin(conn)
	} else {
		err = server.ServeRenew(conn, conn.peer)
	}
	if err != nil {
		l.options.Log(err)
	}
}

// queue hands the connections of one protocol to Accept.
type queue struct {
	listener  *Listener
	conns     chan *Conn
	closed    chan struct{}
	closeOnce sync.Once
}

func newQueue(l *Listener) *queue {
	return &queue{listener: l, conns: make(chan *Conn), closed: make(chan struct{})}
}

func (q *queue) accept(stop <-chan struct{}, why func() error) (*Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-stop:
		return nil, why()
	case <-q.listener.done:
		return nil, net.ErrClosed
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	conn, err := q.accept(nil, nil)
	if err != nil {
		return nil, err // not a nil *Conn in a net.Conn
	}
	return conn, nil
}

// Close implements net.Listener. The port is shared: it stays open, but this protocol is no longer served.
func (q *queue) Close() error {
	q.closeOnce.Do(func() { close(q.closed) })
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return q.listener.Addr() }
