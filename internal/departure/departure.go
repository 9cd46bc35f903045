// Package departure prepares a move: it finds the container that a user names, checks whether the container
// can leave, describes it to the target (Offer), and predicts what the move costs (Plan). It moves nothing.
package departure

import (
	"context"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/volumes"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Config of departures from a node.
type Config struct {
	Node       string // its name
	PostCopy   migration.PostCopyUse
	Rules      admission.Rules
	Containers Containers
	// Connected adds what is known of a container's network.
	Connected func(ctx context.Context, of engine.Container) (engine.Container, error)
	Peers     Peers
	Engines   Engines
	Admission Admission
	Volumes   Volumes
	// Layers describes those of some layers that are here.
	Layers     func(diffIDs []string) []*api.Layer
	Forecaster func() *forecast.Forecaster
	// ExamineInodes finds open files whose inodes the container's programs remember.
	ExamineInodes func(ctx context.Context, of engine.Definition, chosen volumes.Chosen,
		settings migration.Settings) ([]engine.Problem, error)
	Spill Spill
}

// Containers are those of the node. See migrate.Containers.
type Containers interface {
	// Idle finds a container that no migration has to do with.
	Idle(ctx context.Context, reference string) (engine.Container, error)
	// AwaitOver waits until the container's last migration has ended here.
	AwaitOver(ctx context.Context, reference string) error
}

// Peers are the other nodes. See cluster.Peers.
type Peers interface {
	Find(name string) (identity.Node, error)
	Protocol(name string) (int, error)
	RefusedBy(name string) []migration.Mode
	Client(node identity.Node) (*grpc.ClientConn, error)
}

// Engines of the node. See engine.Set.
type Engines interface {
	EngineFor(of engine.Definition) engine.Engine
}

// Admission knows the memory of this node. See admission.Admission.
type Admission interface {
	MemoryOf(ctx context.Context, container string) (int64, error)
	ExamineOwnRoom(offer *api.Offer) []engine.Problem
}

// Volumes of containers. See volumes.Mover.
type Volumes interface {
	Choose(ctx context.Context, mode migration.Mode, of engine.Definition, to identity.Node,
		ways migration.VolumeWays) (volumes.Chosen, error)
	TreesSize(ctx context.Context, of engine.Definition, moved []migration.VolumeMoved) (int64, error)
}

// Spill is memory that is copied to the disk of the source before it follows its container.
type Spill interface {
	// Bytes are how much of it there may be.
	Bytes(mode migration.Mode, settings migration.Settings, memoryBytes int64) int64
	// Examine finds what stands against that much.
	Examine(needed int64) []engine.Problem
	// NoKey is the problem of a target that keeps no key for it; nil: it does, or no key is needed.
	NoKey(node string, needed int64, reservation *api.Reservation) *migration.Problem
}

// Departures from a node.
type Departures struct{ Config }

// New has let nothing leave.
func New(c Config) *Departures { return &Departures{c} }

// RefusedModes returns the modes in which no container may move to a node, each with the reason.
func (d *Departures) RefusedModes(to string) map[migration.Mode]string {
	return d.Rules.RefusedModes(to, d.Peers.RefusedBy(to))
}
