package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/godwit/godwit/internal/wire/identity"
)

// A control connection that is silent for pingAfter gets a ping, and is given up pingTimeout later.
const (
	pingAfter       = 10 * time.Second // gRPC's minimum for a client
	pingTimeout     = 5 * time.Second
	maxConnectDelay = 2 * time.Second
)

// AuthInfo is gRPC's record of a verified peer.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Peer identity.Peer
}

// AuthType implements credentials.AuthInfo.
func (AuthInfo) AuthType() string { return "godwit" }

// PeerFrom returns the node that makes a call; false if no node made it.
func PeerFrom(ctx context.Context) (identity.Peer, bool) {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return identity.Peer{}, false
	}
	info, ok := caller.AuthInfo.(AuthInfo)
	return info.Peer, ok
}

// ServerOptions returns the options of a gRPC server that serves Listener.Control.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(nodeCredentials{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2,
			PermitWithoutStream: true}),
	}
}

// DialControl makes a gRPC client for a node. The client connects on first use, and again after the
// connection was lost. Calls reach only the expected node. The bytes that come are added to heard, if it is
// not nil.
func DialControl(id *identity.Identity, address, expected string, heard *atomic.Int64) (*grpc.ClientConn,
	error) {
	if err := identity.CheckName(expected); err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(nodeCredentials{id: id, expected: expected, heard: heard}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialTCP(ctx, address, controlTimeout)
		}),
		grpc.WithNoProxy(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout,
			PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: maxConnectDelay},
			MinConnectTimeout: handshakeLimit.Most,
		}),
	)
}

// nodeCredentials tells gRPC who is at the other end. At the server, the Listener has already done the
// handshake.
type nodeCredentials struct {
	id       *identity.Identity
	expected string
	heard    *atomic.Int64 // nil: nobody wants to know
}

// ClientHandshake implements credentials.TransportCredentials.
func (n nodeCredentials) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	tcp, ok := raw.(*net.TCPConn)
	if !ok || n.id == nil {
		return nil, nil, errors.New("credentials of a server used by a client")
	}
	conn, err := secure(ctx, tcp, n.id, n.expected, controlProtocol, n.heard)
	if err != nil {
		return nil, nil, fmt.Errorf("node %s: %w", n.expected, explain(err))
	}
	return conn, authInfo(conn), nil
}

// ServerHandshake implements credentials.TransportCredentials.
func (n nodeCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, ok := raw.(*Conn)
	if !ok {
		return nil, nil, errors.New("not a connection of a node")
	}
	return conn, authInfo(conn), nil
}

func authInfo(conn *Conn) AuthInfo {
	common := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return AuthInfo{CommonAuthInfo: common, Peer: conn.peer}
}

// Info implements credentials.TransportCredentials.
func (n nodeCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (n nodeCredentials) Clone() credentials.TransportCredentials { return n }

// OverrideServerName implements credentials.TransportCredentials; the expected node is never overridden.
func (n nodeCredentials) OverrideServerName(string) error { return nil }
