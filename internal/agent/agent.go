package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/attachment"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/cluster/measure"
	"github.com/godwit/godwit/internal/departure"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/lease"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/node/supervisor"
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
	config     Config
	log        *slog.Logger
	ctx        context.Context //nolint:containedctx // The life of the daemon: migrations outlive calls.
	stop       context.CancelFunc
	calls      *access.Record // of users and other nodes
	supervisor *supervisor.Supervisor
	rights     access.Rights

	here
	neighbours
	enginesHere
	placesHere
	migrations
	copiesAhead
	transfers
	measured
}

// here is what the node is.
type here struct {
	state *statedir.Dir // the state directory is this process's
	id    *identity.Identity
	self  identity.Node
	cores int
	boot  string // id of the machine's boot
	spare *durable.Spare
}

// neighbours are the other nodes, and the ways to them.
type neighbours struct {
	network *network.Network
	peers   *cluster.Peers
	links   *measure.Links
	members *cluster.Members
	// settingPeers keeps calls of setPeers in order.
	settingPeers sync.Mutex
}

// enginesHere have the containers of the node.
type enginesHere struct {
	engines  *engine.Set
	routed   []engine.Engine    // those among them whose containers' connections are adopted
	watched  attachment.Watched // the engine that tells of its containers
	embedded *embedded.Engine   // the node's own among them, and the one that "godwit run" uses
	images   *image.Store
	lists    *inventory.Lists
	looks    inventory.Looks
}

// placesHere look after the addresses of containers, and where containers are.
type placesHere struct {
	locations   *location.Locations
	doubles     *location.Doubles
	restarts    *restart.Restarts
	leases      *lease.Leases
	adopter     *attachment.Adopter
	bridges     *attachment.Bridges
	attachments *attachment.Attachments
	keeper      *attachment.Keeper
}

// migrations of the node, and what can begin one.
type migrations struct {
	moves        *migrate.Moves
	recovery     *migrate.Recovery
	containers   *migrate.Containers
	operators    *migrate.Operators
	departures   *departure.Departures
	admission    *admission.Admission
	reservations *reserve.Reservations
}

// copiesAhead are made before moves, or left by them.
type copiesAhead struct {
	stages       *staging.Stages
	placements   *controller.Controller
	stagedCopies *staging.Copies
	residuals    *residual.Copies
	kept         *kept.Copies
}

// transfers bring what a container needs beside its memory.
type transfers struct {
	layers  *layers.Mover
	proofs  *proof.Prover
	volumes *volumes.Mover
}

// measured is what is known of costs.
type measured struct {
	samples    *sampling.Samples
	machine    *sampling.Machine
	experience *sampling.Experience
}

// incarnation is that of this node's state.
func (a *Agent) incarnation() string {
	if a.state == nil {
		return ""
	}
	return a.state.Incarnation
}

func (a *Agent) streamOptions() stream.Options {
	return stream.Options{Workers: a.cores}
}
