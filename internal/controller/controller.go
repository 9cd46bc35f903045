package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/executor"
	"github.com/godwit/godwit/internal/controller/intake"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/pinned"
)

const (
	keyPairName     = "controller"
	pingAfter       = 10 * time.Second
	pingTimeout     = 5 * time.Second
	maxMessageBytes = 256 << 10 // an agent tells a large state in parts
	maxHeaderBytes  = 16 << 10
	maxStreams      = 16      // of one connection: an agent has one, a command a few
	bufferBytes     = 4 << 10 // of a connection: there are thousands, which are quiet most of the time
	retryAfter      = time.Second
	// handshakeTimeout is how long a new connection may take until TLS is up.
	handshakeTimeout = 10 * time.Second
	resignTimeout    = 3 * time.Second
)

// Config of a controller.
type Config struct {
	Store  store.Store
	Name   string // of this process among the candidates
	Listen string // TCP address for agents and users
	RunDir string // for the socket of "godwit-controller token"
	// AuditDir has the logs of what users did while this process led.
	AuditDir string
	Limits   executor.Limits
	Enforce  bool // carry out what containers' labels say, see package decide
	Log      *slog.Logger
}

// SocketPath returns the path of the socket for "godwit-controller token".
func SocketPath(runDir string) string { return filepath.Join(runDir, "controller.sock") }

// Run leads whenever it can, until ctx ends. Migrations go on without it.
func Run(ctx context.Context, config Config) error {
	for {
		config.Log.Info("waits until no other controller leads", "candidate", config.Name)
		term, err := config.Store.Campaign(ctx, config.Name)
		if err == nil {
			err = lead(ctx, config, term)
			leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
			err = errors.Join(err, term.Resign(leave))
			cancel()
		}
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, store.ErrNotLeader) {
			return err // such as an address in use: another attempt would not go better
		}
		config.Log.Warn("leads no more", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// lead serves for one term.
func lead(ctx context.Context, config Config, term store.Term) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c, err := openCluster(ctx, config, defaultBounds(), term)
	if err != nil {
		return err
	}
	pair, err := c.keyPair(ctx)
	if err != nil {
		return err
	}
	certificate, fingerprint, err := pinned.Parse(pair)
	if err != nil {
		return err
	}
	c.tokens.fingerprint = fingerprint
	remote, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return fmt.Errorf("listen for agents and users: %w", err)
	}
	local, err := listenLocally(config.RunDir)
	if err != nil {
		return errors.Join(err, remote.Close())
	}
	server := newServer(c, certificate)
	admin := grpc.NewServer(grpc.UnaryInterceptor(c.callers.asRoot))
	api.RegisterControllerAdminServer(admin, &adminService{cluster: c})
	failed := guard.Go(func() error { return server.Serve(remote) })
	adminFailed := guard.Go(func() error { return admin.Serve(local) })
	looped := guard.Go(func() error { return c.loop(ctx) })
	config.Log.Info("controller leads", "address", remote.Addr().String(), "epoch", term.Epoch(),
		"fingerprint", fingerprint.String())
	select {
	case <-ctx.Done():
	case <-term.Lost():
		err = store.ErrNotLeader
	case err = <-failed:
	case err = <-adminFailed:
	case err = <-looped:
	}
	stop()
	server.Stop()
	admin.Stop()
	return err
}

// server is what agents and users call.
type server struct {
	*grpc.Server
	connections *intake.Connections
}

// Serve serves connections within the limits, until the server is stopped.
func (s server) Serve(inner net.Listener) error { return s.Server.Serve(s.connections.Listener(inner)) }

func newServer(c *cluster, certificate tls.Certificate) server {
	made := grpc.NewServer(
		grpc.Creds(intake.Credentials(credentials.NewTLS(pinned.ServerConfig(certificate)))),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2,
			PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes),
		grpc.InTapHandle(c.callers.admit),
		grpc.ChainUnaryInterceptor(c.callers.unary), grpc.ChainStreamInterceptor(c.callers.stream),
	)
	api.RegisterControllerServer(made, &userService{cluster: c})
	api.RegisterUplinkServer(made, &uplinkService{cluster: c})
	return server{made, c.callers.connections}
}

// listenLocally opens the socket for root.
func listenLocally(runDir string) (net.Listener, error) {
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, fmt.Errorf("socket of the controller: %w", err)
	}
	if err := os.Chmod(runDir, 0o700); err != nil { // so that nobody else reaches the socket
		return nil, fmt.Errorf("socket of the controller: %w", err)
	}
	path := SocketPath(runDir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket of an earlier controller: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket of the controller: %w", err)
	}
	return listener, nil
}
