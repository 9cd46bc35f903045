package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/wire/identity"
)

// Dial opens a data connection to a node and verifies that it is the expected node. The other end may still
// refuse this node; the first read shows that.
func Dial(ctx context.Context, id *identity.Identity, address, expected string) (*Conn, error) {
	return dial(ctx, id, address, expected, dataProtocol, dataTimeout)
}

// DialRenew opens the connection to the CA's node over which Identity.Renew asks.
func DialRenew(ctx context.Context, id *identity.Identity, address, expected string) (*Conn, error) {
	return dial(ctx, id, address, expected, identity.RenewProtocol, controlTimeout)
}

func dial(ctx context.Context, id *identity.Identity, address, expected, protocol string,
	timeout time.Duration) (*Conn, error) {
	tcp, err := dialTCP(ctx, address, timeout)
	if err != nil {
		return nil, fmt.Errorf("connect to node %s: %w", expected, err)
	}
	conn, err := secure(ctx, tcp, id, expected, protocol, nil)
	if err != nil {
		tcp.Close()
		return nil, fmt.Errorf("connect to node %s at %s: %w", expected, address, explain(err))
	}
	return conn, nil
}

func dialTCP(ctx context.Context, address string, timeout time.Duration) (*net.TCPConn, error) {
	dialer := net.Dialer{KeepAliveConfig: keepAlive(timeout), Timeout: handshakeLimit.Still}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp := conn.(*net.TCPConn)
	if err := tune(tcp, timeout); err != nil {
		tcp.Close()
		return nil, err
	}
	return tcp, nil
}

// secure identifies this end and verifies the other. The bytes that come are added to heard, if it is not
// nil.
func secure(ctx context.Context, tcp *net.TCPConn, id *identity.Identity, expected, protocol string,
	heard *atomic.Int64) (*Conn, error) {
	if err := identity.CheckName(expected); err != nil {
		return nil, err
	}
	raw := newRawConn(tcp)
	if heard != nil {
		raw.heard = heard
	}
	conn := &Conn{Conn: tls.Client(raw, clientConfig(id, expected, protocol)), raw: raw}
	if err := conn.handshake(ctx, handshakeLimit); err != nil {
		return nil, err
	}
	var err error
	if conn.peer, err = peerOf(conn.ConnectionState()); err != nil {
		return nil, err
	}
	return conn, conn.attend(id)
}
