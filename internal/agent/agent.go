package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/attachment"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/engine/engines"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/gc"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/lease"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/placement/controller"
	"github.com/godwit/godwit/internal/policy"
	"github.com/godwit/godwit/internal/reserve"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/restart"
	"github.com/godwit/godwit/internal/sampling"
	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/statedir"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/transfer/volumes"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Config of an agent.
type Config struct {
	StateDir string
	RunDir   string
	Listen   string // TCP address; "" for the port of the node's own address
	Group    string // group that may use the socket; "" for root only
	Rights   access.Groups
	Policy   policy.Policy
	// PolicyFile is the file from which Policy was read; "" for the default one, which need not exist.
	PolicyFile string
	Version    string
	// PeerTimeout is how long another node may be silent before it counts as lost; 0 for DefaultPeerTimeout.
	PeerTimeout time.Duration
	// ResidualLimit bounds the memory of all residual copies together, in bytes; 0 for a quarter of the
	// memory that is available at the time.
	ResidualLimit int64
	// KeepBroken is how long files stay that came by a migration that failed; 0: not at all.
	KeepBroken time.Duration
	Overlay    network.Overlay // how packets of containers go to other nodes; network.OverlayAuto if empty
	// PostCopy is whether memory of containers that leave this node may follow after the handover;
	// empty: PostCopyAuto.
	PostCopy migration.PostCopyUse
	Faults   bool // for tests: do what files in the run directory ask for, see Fault
	Log      *slog.Logger
}

// DefaultPeerTimeout is much longer than a link that works is ever silent, and as long as anybody
// wants to wait for a container that is frozen. MinPeerTimeout leaves room for a busy machine.
const (
	DefaultPeerTimeout = 10 * time.Second
	MinPeerTimeout     = time.Second
)

func (c Config) peerTimeout() time.Duration {
	if c.PeerTimeout == 0 {
		return DefaultPeerTimeout
	}
	return c.PeerTimeout
}

// DefaultKeepBroken is how long files stay that came by a migration that failed.
const DefaultKeepBroken = kept.DefaultKeep

// callTimeout bounds a call that can be repeated.
func (c Config) callTimeout() time.Duration { return c.peerTimeout() / 2 }

// Agent is one node's daemon.
type Agent struct {
	config   Config
	log      *slog.Logger
	ctx      context.Context //nolint:containedctx // The life of the daemon: migrations outlive calls.
	stop     context.CancelFunc
	state    *statedir.Dir // the state directory is this process's
	id       *identity.Identity
	self     identity.Node
	engines  *engine.Set
	routed   []engine.Engine    // those among them whose containers' connections are adopted
	watched  attachment.Watched // the engine that tells of its containers
	embedded *embedded.Engine   // the node's own among them, and the one that "godwit run" uses
	images   *image.Store
	network  *network.Network
	peers    *cluster.Peers
	members  *cluster.Members
	// settingPeers keeps calls of setPeers in order.
	settingPeers sync.Mutex
	cores        int
	boot         string // id of the machine's boot

	moves        *moves
	spare        *durable.Spare
	stages       *staging.Stages
	placements   *controller.Controller
	samples      *sampling.Samples
	machine      *sampling.Machine
	experience   *sampling.Experience
	stagedCopies *staging.Copies
	residuals    *residual.Copies
	kept         *kept.Copies
	layers       *layers.Mover
	proofs       *proof.Prover
	volumes      *volumes.Mover
	admission    *admission.Admission
	reservations *reserve.Reservations
	locations    *location.Locations
	doubles      *location.Doubles
	restarts     *restart.Restarts
	leases       *lease.Leases
	adopter      *attachment.Adopter
	bridges      *attachment.Bridges
	attachments  *attachment.Attachments
	keeper       *attachment.Keeper
	lists        *inventory.Lists
	looks        inventory.Looks
	calls        *access.Record // of users and other nodes
	entries      sync.WaitGroup // of calls that sessions will write
	supervisor   *supervisor
	rights       access.Rights
}

// Run is the life of an agent, until ctx ends. Containers go on without it; migrations that are
// under way are undone, or brought to their end if they are that far.
func Run(ctx context.Context, config Config) error {
	gc.Usual()
	supervisor := newSupervisor(config.Log)
	rights, err := config.Rights.Resolve(config.Group)
	if err != nil {
		return err
	}
	opened := time.Now()
	a, err := newAgent(ctx, config)
	if err != nil {
		return err
	}
	defer a.close()
	a.supervisor, a.rights = supervisor, rights
	return a.serve(ctx, opened)
}

func newAgent(ctx context.Context, config Config) (*Agent, error) {
	state, err := takeState(config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx)) // When it shall end it has things to do yet.
	a := &Agent{
		config: config, state: state, log: config.Log, ctx: ctx, stop: stop, cores: runtime.NumCPU(),
		calls: access.NewRecord(
			audit.New(config.StateDir, audit.Users), audit.New(config.StateDir, audit.Nodes), config.Log),
		reservations: reserve.New(),
		residuals:    residual.New(residual.Config{Limit: config.ResidualLimit}),
		machine:      sampling.NewMachine(runtime.NumCPU()),
		spare:        durable.NewSpare(filepath.Join(config.StateDir, "migrations")),
	}
	err = os.MkdirAll(filepath.Join(config.StateDir, "migrations"), 0o755)
	if err != nil {
		err = fmt.Errorf("directory of the agent: %w", err)
	} else {
		err = a.open()
	}
	if err != nil {
		stop()
		return nil, errors.Join(err, state.Close())
	}
	return a, nil
}

// takeState makes sure that nobody else writes what this agent is about to read and to change. An
// agent of a version without locks still answers at its socket.
func takeState(config Config) (*statedir.Dir, error) {
	state, err := statedir.Open(config.StateDir, config.RunDir)
	if err != nil {
		return nil, err
	}
	if path := access.SocketPath(config.RunDir); access.Answers(path) {
		err := fmt.Errorf("an agent is already running on this node: it answers at %s", path)
		return nil, errors.Join(err, state.Close())
	}
	if state.Renewed != "" {
		config.Log.Info("the state has a new incarnation", "incarnation", state.Incarnation, "why",
			state.Renewed)
	}
	return state, nil
}

// open makes the parts of the agent from what is on disk.
func (a *Agent) open() error {
	var err error
	if a.id, err = identity.Load(a.config.StateDir); err != nil {
		return err
	}
	a.self = a.id.Node
	if a.boot, err = kernel.BootID(); err != nil {
		return err
	}
	if a.kept, err = kept.New(kept.Config{
		StateDir: a.config.StateDir, Keep: a.config.KeepBroken, Log: a.log,
	}); err != nil {
		return err
	}
	if a.images, err = image.Open(a.config.StateDir); err != nil {
		return err
	}
	spool, err := image.OpenSpool(filepath.Join(a.config.StateDir, "spool"))
	if err != nil {
		return err
	}
	a.embedded, err = embedded.New(embedded.Config{
		StateDir: a.config.StateDir, RunDir: a.config.RunDir, Images: a.images, State: a.incarnation(),
	})
	if err != nil {
		return err
	}
	unopened, err := a.openEngines()
	if err != nil {
		return err
	}
	a.lists = newLists(a)
	if a.peers, err = a.newPeers(); err != nil {
		return err
	}
	a.layers = a.newLayers(spool)
	a.proofs = a.newProver()
	a.volumes = a.newVolumes()
	if err := a.openNetwork(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	a.leases = newLeases(a)
	a.locations = newLocations(a)
	a.peers.Overlays.Recall(a.network.Tunnel().Keys())
	a.doubles, a.restarts = newDoubles(a), newRestarts(a)
	a.peers.Attach(told{a.locations, a.doubles}, greeted{a}, greeted{a})
	a.members = cluster.NewMembers(a.peers, func() []migration.Spec { return a.moves.underWaySpecs() })
	openAttachments(a, unopened)
	a.setPeers()
	a.leases.TakeBack(a.ctx, a.embedded)
	a.moves = newMoves(a) // reconcile has ends of containers waited for, which asks whether they move
	if err := a.attachments.Reconcile(a.ctx); err != nil {
		return fmt.Errorf("containers of this node: %w", err)
	}
	a.stages, a.stagedCopies = a.newStages(), a.newStagedCopies()
	a.admission = newAdmission(a)
	a.samples = sampling.New(a.ctx, a.self.Name, sampledNode{a}, a.log)
	a.experience = sampling.NewExperience(a.machine, a.samples.Last)
	if a.placements, err = a.openPlacements(); err != nil {
		return err
	}
	if err := a.moves.recover(); err != nil {
		return err
	}
	a.moves.rebuilder.Rebuild(a.ctx, a.embedded) // which asks nobody
	return nil
}

// openEngines makes the set of engines. See openOthers for unopened.
func (a *Agent) openEngines() (unopened, failed error) {
	others, unopened, err := a.openOthers()
	if err != nil {
		return nil, err
	}
	a.engines = engine.NewSet(a.embedded, others...)
	for _, one := range others {
		can := one.Capabilities()
		if can.Addresses == engine.PoolAddresses {
			a.routed = append(a.routed, one)
		}
		if can.Watcher != nil {
			a.watched = can.Watcher
		}
	}
	return unopened, nil
}

// followUp does at the start of the agent what may wait for engines, while it serves: one that hangs delays
// nothing else.
func (a *Agent) followUp(ctx context.Context, opened time.Time) {
	for _, one := range a.engines.All() {
		sweeper := one.Capabilities().Sweeper
		if sweeper == nil {
			continue
		}
		go a.guarded(func() {
			if err := sweeper.SweepImages(ctx, opened); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot clean up after moves of containers of other engines", "error", err)
			}
		})()
	}
	go a.guarded(func() { a.attachments.ReconcileOthers(ctx) })()
}

// openOthers opens the other engines. Most may be installed while the agent runs; an engine that has to be
// there at the start (LXC) is left out if it is not. An engine with addresses of the pool that does not work
// keeps nobody from the others: unopened.
func (a *Agent) openOthers() (others []engine.Engine, unopened, failed error) {
	for _, kind := range engines.All() {
		if kind.Open == nil {
			continue
		}
		one, err := kind.Open(engine.Config{StateDir: a.config.StateDir, RunDir: a.config.RunDir})
		switch {
		case err == nil:
			others = append(others, one)
			a.sweep(one.Capabilities())
		case errors.Is(err, engine.ErrAway):
		case kind.Addresses == engine.PoolAddresses:
			a.log.Warn("containers of "+kind.Title+" cannot be moved", "error", err)
			unopened = errors.Join(unopened, err)
		default:
			return nil, nil, err
		}
	}
	return others, unopened, nil
}

// sweep removes what an engine's failed moves have left.
func (a *Agent) sweep(can engine.Capabilities) {
	if can.Sweeper == nil {
		return
	}
	if err := can.Sweeper.Sweep(); err != nil { // an arrival that it is in the way of tries again, and fails
		a.log.Warn("cannot clean up after moves of containers of other engines", "error", err)
	}
}

func (a *Agent) openNetwork() error {
	underlay, err := hostAddress(a.self.Address)
	if err != nil {
		return err
	}
	a.network, err = network.New(network.Config{
		NodeName: a.self.Name, NodeNumber: a.self.Number, Pool: a.id.Pool, Underlay: underlay,
		RunDir: a.config.RunDir, StateDir: a.config.StateDir, Overlay: a.config.Overlay, Log: a.log,
	})
	if err != nil {
		return err
	}
	obstacles, err := a.network.Obstacles()
	if err != nil {
		a.log.Warn("cannot check for firewall rules and networks that block containers' "+
			"packets", "error", err)
	}
	for _, one := range obstacles {
		a.log.Warn("packets of containers may not arrive", "why", one.What, "remedy", one.Remedy)
	}
	return nil
}

// hostAddress is the IP address of a node.
func hostAddress(address string) (netip.Addr, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("address of a node %q: %w", address, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	resolved, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("address of a node %q: %w", address, err)
	}
	ip, _ := netip.AddrFromSlice(resolved.IP)
	return ip.Unmap(), nil
}

// setPeers tells the network which nodes there are. A node whose name cannot be resolved now is
// left out, and the next change brings it in.
func (a *Agent) setPeers() {
	a.settingPeers.Lock() // so that what is known last is said last
	defer a.settingPeers.Unlock()
	var peers []network.Peer
	for _, node := range a.peers.Others() {
		peer, err := a.peerOf(node)
		if err != nil {
			a.log.Warn("node left out", "node", node.Name, "error", err)
			continue
		}
		peers = append(peers, peer)
	}
	peers, contradictions := a.network.Tunnel().Consistent(peers)
	for _, one := range contradictions {
		a.log.Warn("node left out of the overlay", "error", one)
	}
	if err := a.network.SetPeers(peers); err != nil {
		a.log.Error("routes to other nodes", "error", err)
	}
}

func (a *Agent) newPeers() (*cluster.Peers, error) {
	return cluster.New(cluster.Config{
		ID: a.id, State: a.config.StateDir, Version: a.config.Version, Timeout: a.config.callTimeout(),
		Refused: a.config.Policy.Refused(admission.ModeNames()), Log: a.log,
	})
}

func (a *Agent) probeLinks(ctx context.Context) {
	a.peers.ProbeLinks(ctx, a.moves.busy, func(ctx context.Context, node identity.Node) error {
		return a.measure(ctx, node, measureBudget())
	})
}

func (a *Agent) streamOptions() stream.Options {
	return stream.Options{Workers: a.cores}
}

// serve answers until ctx ends, with an agent that was opened at some time.
func (a *Agent) serve(ctx context.Context, opened time.Time) error {
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
	a.tuneSockets()
	go a.guarded(func() { a.warmCRIU(ctx) })()
	a.followUp(a.ctx, opened)
	go a.guarded(func() { a.proofs.RemoveLeft(a.proofs.Left()) })()
	return a.serveAll(ctx, local, remote)
}

// warmCRIU spares the first migration after boot what CRIU does only once.
func (a *Agent) warmCRIU(ctx context.Context) {
	tool, err := criu.Find()
	if err == nil {
		err = tool.Warm(ctx)
	}
	if err != nil {
		a.log.Warn("CRIU does not work: containers run, but cannot be migrated; see \"godwit doctor\"",
			"error", err)
	}
}

// tuneSockets keeps an idle data connection from starting slowly again: a migration must not pay
// that in the freeze.
func (a *Agent) tuneSockets() {
	settings, err := wire.Sysctls()
	if err != nil {
		a.log.Warn("settings of the network namespace", "error", err)
	}
	for _, setting := range settings {
		if setting.Met() {
			continue
		}
		if err := setting.Set(); err != nil {
			a.log.Warn("setting of the network namespace", "name", setting.Name, "why", setting.Why, "error",
				err)
		}
	}
}

func (a *Agent) serveAll(ctx context.Context, local net.Listener, remote *wire.Listener) error {
	// The outermost first: a panic is kept, too.
	localOptions := append(a.calls.Options(access.Audited()), recovering(a.log)...)
	localOptions = append(localOptions, a.rights.Authorizing()...)
	localServer := grpc.NewServer(append(localOptions, grpc.Creds(access.NewCredentials()),
		noticing(func() { a.lists.Changed(a.embedded) }))...)
	api.RegisterAgentServer(localServer, newLocalService(a))
	options := append(a.calls.Options(access.AuditedOfNodes()), recovering(a.log)...)
	options = append(options, wire.ServerOptions()...)
	peerServer := grpc.NewServer(append(options, grpc.MaxConcurrentStreams(maxPeerStreams))...)
	api.RegisterPeerServer(peerServer, newPeerService(a))

	localFailed := guard.Go(func() error { return localServer.Serve(local) })
	peerFailed := guard.Go(func() error { return peerServer.Serve(remote.Control()) })
	var all sync.WaitGroup
	all.Go(func() { a.peers.Run(a.ctx) })
	all.Go(func() { a.peers.Hosts.Keep(a.ctx) })
	all.Go(func() { a.serveData(a.ctx, remote) })
	all.Go(func() { a.members.RenewCertificate(a.ctx) })
	all.Go(func() { a.moves.retry(a.ctx) })
	all.Go(func() { a.watchMemory(a.ctx) })
	all.Go(func() { a.probeLinks(a.ctx) })
	all.Go(func() { a.keeper.Run(a.ctx) })
	all.Go(func() { a.restarts.Run(a.ctx) })
	all.Go(func() { a.keeper.Watch(a.ctx) })
	all.Go(func() { a.supervisor.watch(a.ctx, a.alive) })
	all.Go(a.guarded(func() { runUplink(a.ctx, a) }))
	a.placements.Begin()
	a.supervisor.tell("READY=1")
	a.log.Info("agent ready", "node", a.self.Name, "address", a.self.Address, "version", a.config.Version)
	var err error
	select {
	case <-ctx.Done():
		a.log.Info("agent ends")
		a.supervisor.tell("STOPPING=1")
		a.moves.wind(a.ctx)
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
	a.entries.Wait()
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
