package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// serve answers until ctx ends, with an agent that was opened at some time.
func serve(ctx context.Context, a *Agent, opened time.Time) error {
	local, err := access.Listen(a.config.RunDir, a.config.Group, a.rights)
	if err != nil {
		return err
	}
	defer local.Close()
	server, err := identity.NewServer(a.id, a.peers.List, func(node identity.Node) {
		a.peers.Learn([]identity.Node{node})
		a.calls.Keep(ctx, audit.Entry{
			Time: time.Now().UTC(), Method: "Join", Node: node.Name, Object: node.Address, Outcome: "ok",
		})
	})
	if err != nil {
		return err
	}
	server.OnRemoved(a.peers.Drop)
	address := a.config.Listen
	if address == "" {
		_, port, err := net.SplitHostPort(a.self.Address)
		if err != nil {
			return fmt.Errorf("address of this node: %w", err)
		}
		address = ":" + port
	}
	remote, err := wire.Listen(ctx, address, wire.ListenOptions{
		Identity: a.id, Server: server, Known: a.peers.Hosts.Known, Log: func(err error) {
			a.log.Info("connection refused", "error", err)
			a.logPanic(err)
		},
	})
	if err != nil {
		return err
	}
	defer remote.Close()
	tuneSockets(a.log)
	go a.guarded(func() { warmCRIU(ctx, a.log) })()
	followUp(a.ctx, a, opened)
	go a.guarded(func() { a.proofs.RemoveLeft(a.proofs.Left()) })()
	return serveAll(ctx, a, local, remote)
}

// warmCRIU spares the first migration after boot what CRIU does only once.
func warmCRIU(ctx context.Context, log *slog.Logger) {
	tool, err := criu.Find()
	if err == nil {
		err = tool.Warm(ctx)
	}
	if err != nil {
		log.Warn("CRIU does not work: containers run, but cannot be migrated; see \"godwit doctor\"",
			"error", err)
	}
}

// tuneSockets keeps an idle data connection from starting slowly again: a migration must not pay
// that in the freeze.
func tuneSockets(log *slog.Logger) {
	settings, err := wire.Sysctls()
	if err != nil {
		log.Warn("settings of the network namespace", "error", err)
	}
	for _, setting := range settings {
		if setting.Met() {
			continue
		}
		if err := setting.Set(); err != nil {
			log.Warn("setting of the network namespace", "name", setting.Name, "why", setting.Why, "error",
				err)
		}
	}
}

func serveAll(ctx context.Context, a *Agent, local net.Listener, remote *wire.Listener) error {
	peers := newPeerService(a)
	localServer, peerServer := newServers(a, peers)
	localFailed := guard.Go(func() error { return localServer.Serve(local) })
	peerFailed := guard.Go(func() error { return peerServer.Serve(remote.Control()) })
	var all sync.WaitGroup
	all.Go(func() { a.peers.Run(a.ctx) })
	all.Go(func() { a.peers.Hosts.Keep(a.ctx) })
	all.Go(func() { newDataServer(a).Run(a.ctx, remote) })
	all.Go(func() { a.members.RenewCertificate(a.ctx) })
	all.Go(func() { a.recovery.Retry(a.ctx) })
	all.Go(func() { watchMemory(a.ctx, a) })
	all.Go(func() { a.peers.ProbeLinks(a.ctx, a.moves.Busy, a.links.Measure) })
	all.Go(func() { a.keeper.Run(a.ctx) })
	all.Go(func() { a.restarts.Run(a.ctx) })
	all.Go(func() { a.keeper.Watch(a.ctx) })
	all.Go(func() { a.supervisor.Watch(a.ctx, alive(a)) })
	all.Go(a.guarded(func() { runUplink(a.ctx, a) }))
	a.placements.Begin()
	a.supervisor.Tell("READY=1")
	a.log.Info("agent ready", "node", a.self.Name, "address", a.self.Address, "version", a.config.Version)
	var err error
	select {
	case <-ctx.Done():
		a.log.Info("agent ends")
		a.supervisor.Tell("STOPPING=1")
		a.moves.Wind(a.ctx)
		stopHeard(peerServer)
	case err = <-localFailed:
	case err = <-peerFailed:
	}
	a.placements.Close()
	a.stages.Close()
	a.samples.Close()
	a.stop()
	localServer.Stop()
	peerServer.Stop()
	all.Wait() // nobody begins to look any more
	a.looks.Wait()
	peers.WaitEntries()
	return err
}

// lastWordsAtMost bounds how long the end of an agent waits for its peers to have heard how
// migrations have ended.
const lastWordsAtMost = 2 * time.Second

// stopHeard stops a server when what was said on its streams has left. A stream that is cut loses
// it, and the peer would tell its user of a lost connection.
func stopHeard(server *grpc.Server) {
	cut := time.AfterFunc(lastWordsAtMost, server.Stop)
	defer cut.Stop()
	server.GracefulStop()
}

func (a *Agent) close() {
	a.stop()
	if err := errors.Join(a.peers.Close(), a.network.Close(), a.state.Close()); err != nil {
		a.log.Warn("closing", "error", err)
	}
}
