package admission

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
)

// Admission decides which containers can come to a node.
type Admission struct {
	node, stateDir string
	rules          Rules
	engines        Engines
	containers     Containers
	leases         Leases
	network        Network
	memory         Memory
	images         Images
	layers         Layers
	kept           Kept
	directories    Directories
	waiting        func(definition engine.Definition) []migration.Problem
	platform       func(mode migration.Mode) (migration.Platform, error)
	log            *slog.Logger
}

// Config is what Admission needs of its node.
type Config struct {
	Rules       Rules  // which have the node's name
	StateDir    string // to which files come that are in no volume
	Engines     Engines
	Containers  Containers
	Leases      Leases
	Network     Network
	Memory      Memory
	Images      Images
	Layers      Layers
	Kept        Kept
	Directories Directories
	// Waiting lists what stands against a container because a migration waits for its engine.
	Waiting func(definition engine.Definition) []migration.Problem
	// Platform is that of this node in a mode. See ReadPlatform.
	Platform func(mode migration.Mode) (migration.Platform, error)
	Log      *slog.Logger
}

// Engines are those of the node. See engine.Set.
type Engines interface {
	Lookup(definition engine.Definition) (engine.Engine, error)
	// Elsewhere finds another engine that has a container of this ID; nil: there is none.
	Elsewhere(ctx context.Context, definition engine.Definition) (engine.Engine, error)
	Inspect(ctx context.Context, ref string) (engine.Container, error)
	ImagesOf(name string) (engine.Images, error)
	VolumePath(of engine.Volume) (string, error)
}

// Containers are those of the node that have addresses. See inventory.Lists.
type Containers interface {
	Addressed(ctx context.Context) ([]engine.Container, error)
}

// Leases are of addresses that the node assigns. See lease.Leases.
type Leases interface {
	AtHome(address netip.Addr) bool
	Of(address netip.Addr) (container string)
}

// Network is the node's. See network.Network.
type Network interface {
	Home(address netip.Addr) (node int, err error)
	BridgedPlaces() []network.BridgedPlace
	Established(container string) ([]network.Connection, error)
}

// Memory is the node's.
type Memory struct {
	Available    func() (int64, error)
	Reservations Reservations
	Residuals    Residuals
	// Staged is the size of the copies here of a container, and the reservations that were made for them.
	Staged func(container string) (bytes int64, reserved []string)
}

// Reservations are of memory. See reserve.Reservations.
type Reservations interface {
	Promised(except ...string) (bytes int64)
	PromisedTo(node, one string, own ...string) (bytes, free int64)
}

// Residuals are memory that containers have left here, which yields to containers. See residual.Copies.
type Residuals interface {
	Bytes() int64
	Yield(bytes int64)
}

// Images are those in the node's own store.
type Images interface {
	Has(id string) bool
	HasLayer(diffID string) bool
}

// Layers are those of all engines of the node. See layers.Mover.
type Layers interface {
	Missing(layers []*api.Layer) []*api.Layer
	OnNode(diffID string) bool
}

// Kept are files of migrations that failed, which yield to containers. See kept.Copies.
type Kept interface {
	Bytes(container string) (own, others int64)
	Yield(container string, bytes int64)
}

// Directories are the host's. See volumes.Machine.
type Directories interface {
	ExamineArriving(definition engine.Definition) []migration.Problem
}

// New returns the Admission of a node.
func New(c Config) *Admission {
	return &Admission{
		node: c.Rules.Node, stateDir: c.StateDir, rules: c.Rules, engines: c.Engines,
		containers: c.Containers, leases: c.Leases, network: c.Network, memory: c.Memory, images: c.Images,
		layers: c.Layers, kept: c.Kept, directories: c.Directories, waiting: c.Waiting,
		platform: c.Platform, log: c.Log,
	}
}
