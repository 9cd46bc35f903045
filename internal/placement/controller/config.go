package controller

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Config is what a Controller needs of its node.
type Config struct {
	Dir         string // where policies are durable
	Node        string // the name of this node
	Containers  Containers
	Migrations  Migrations
	Stages      Stages
	Nodes       Nodes
	Links       Links
	Samples     Samples
	Layers      Layers
	Speed       func() predict.Machine // of this node, now
	CallTimeout time.Duration          // of a call to another node
	Log         *slog.Logger
}

// Containers are those of this node.
type Containers interface {
	Inspect(ctx context.Context, reference string) (engine.Container, error)
	// Find is Inspect whose error says where the container went if it was here.
	Find(ctx context.Context, reference string) (engine.Container, error)
	// Idle is Find that refuses a container that is being migrated.
	Idle(ctx context.Context, reference string) (engine.Container, error)
	// MemoryBytes is the size of a copy of a container's memory, as an upper limit.
	MemoryBytes(ctx context.Context, container string) (int64, error)
}

// Migrations are those of this node.
type Migrations interface {
	// Busy reports whether a migration is under way.
	Busy() bool
	// Moving reports whether a container is being migrated.
	Moving(container string) bool
	// BroughtBy is the migration by which a container came here; nil: it has left since, or never was
	// elsewhere.
	BroughtBy(container string) *Arrival
}

// Stages make the copies. See staging.Stages.
type Stages interface {
	// Begin begins a copy that stays idle for that long when its connection ends.
	Begin(ctx context.Context, container, node string, settings migration.StageSettings,
		idle time.Duration) (Live, error)
	// Target is the node where a container is staged; empty: it is not.
	Target(container string) string
}

// Live is a copy that is connected. See staging.Stage.
type Live interface {
	Describe() migration.Stage
	Refresh()
	LimitTo(rate float64)
	End(ctx context.Context, why error) error
	Target() string
}

// Nodes are the nodes of the cluster. See cluster.Peers.
type Nodes interface {
	Others() []identity.Node
	Find(name string) (identity.Node, error)
	Reaches(name string) bool
	Client(node identity.Node) (*grpc.ClientConn, error)
}

// Links are the links to other nodes.
type Links interface {
	WayTo(node string) predict.Link
	Link(node string) (rtt time.Duration, bandwidth float64)
	// Measure measures the bandwidth to a node with a short burst.
	Measure(ctx context.Context, node identity.Node) error
}

// Samples measure containers. See sampling.Samples.
type Samples interface {
	Look(ctx context.Context, definition engine.Definition) (predict.Measured, error)
	Measure(ctx context.Context, definition engine.Definition, window, age time.Duration) predict.Measured
}

// Layers tell which image layers are where. See layers.Mover.
type Layers interface {
	Ask(ctx context.Context, node identity.Node, request *api.LayersRequest) ([]*api.Layer, error)
	Here(diffIDs []string) []*api.Layer
}
