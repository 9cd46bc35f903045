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
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/pinned"
)

const (
	keyPairName     = "controller"
	pingAfter       = 10 * time.Second
	pingTimeout     = 5 * time.Second
	maxMessageBytes = 16 << 20 // the whole state of a node with some 20,000 containers
	maxStreams      = 16       // of one connection: an agent has one, a command a few
	retryAfter      = time.Second
	// handshakeTimeout is how long a new connection may take until TLS is up.
	handshakeTimeout = 10 * time.Second
	resignTimeout    = 3 * time.Second
)

// Config of a controller.
type Config struct {
	Store   store.Store
	Name    string // of this process among the candidates
	Listen  string // TCP address for agents and users
	RunDir  string // for the socket of "godwit-controller token"
	Limits  executor.Limits
	Enforce bool // carry out what containers' labels say, see package decide
	Log     *slog.Logger
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
	c, err := openCluster(ctx, config, term)
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
	c.fingerprint = fingerprint
	remote, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return fmt.Errorf("listen for agents and users: %w", err)
	}
	local, err := listenLocally(config.RunDir)
	if err != nil {
		return errors.Join(err, remote.Close())
	}
	server := newServer(c, certificate)
	admin := grpc.NewServer()
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

func newServer(c *cluster, certificate tls.Certificate) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(pinned.ServerConfig(certificate))),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2,
			PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.ChainUnaryInterceptor(c.recoverUnary, c.authorizeUnary),
		grpc.ChainStreamInterceptor(c.recoverStream, c.authorizeStream),
	)
	api.RegisterControllerServer(server, &userService{cluster: c})
	api.RegisterUplinkServer(server, &uplinkService{cluster: c})
	return server
}

// recoverUnary turns a panic of a call into its error.
func (c *cluster) recoverUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (reply any, err error) {
	err = guard.Do(func() (err error) {
		reply, err = handler(ctx, request)
		return err
	})
	guard.LogPanic(c.log, err)
	return reply, err
}

func (c *cluster) recoverStream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	err := guard.Do(func() error { return handler(server, stream) })
	guard.LogPanic(c.log, err)
	return err
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
