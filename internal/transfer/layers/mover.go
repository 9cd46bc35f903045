package layers

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Mover brings layers to this node, has other nodes bring them, and serves them.
type Mover struct {
	images  *image.Store
	spool   *image.Spool
	engines Engines
	nodes   Nodes
	dial    func(ctx context.Context, node identity.Node, transfer string) (*stream.Session, error)

	state    string // directory
	patience time.Duration
	cores    int
	log      *slog.Logger

	transfers *transfers
	speeds    *speeds
}

// Config is what a mover needs of a node.
type Config struct {
	Images  *image.Store
	Spool   *image.Spool // layers on their way to engines that keep images themselves
	Engines Engines
	Nodes   Nodes
	// Dial makes a connection for layers; transfer is for which one, "" for none.
	Dial     func(ctx context.Context, node identity.Node, transfer string) (*stream.Session, error)
	StateDir string        // where images and spool are
	Patience time.Duration // how long a holder of layers may send nothing
	Cores    int
	Log      *slog.Logger
}

// Engines are those of this node, as they keep images.
type Engines interface {
	// Images are those of engines that keep images themselves.
	Images() []engine.Images
	// ImagesOf is how an engine keeps images; nil: the agent's store has them.
	ImagesOf(name string) (engine.Images, error)
}

// Nodes are the others.
type Nodes interface {
	Others() []identity.Node
	Reaches(name string) bool
	Link(name string) (rtt time.Duration, bandwidth float64)
	Client(node identity.Node) (*grpc.ClientConn, error)
}

// New brings nothing yet.
func New(c Config) *Mover {
	return &Mover{
		images: c.Images, spool: c.Spool, engines: c.Engines, nodes: c.Nodes, dial: c.Dial,
		state: c.StateDir, patience: c.Patience, cores: c.Cores, log: c.Log,
		transfers: newTransfers(), speeds: newSpeeds(),
	}
}

// Transfer finds the transfer that a connection says that it is for. Nil: it is for none, as the layers
// are for another node's.
func (m *Mover) Transfer(id, from string) (*Transfer, error) { return m.transfers.find(id, from) }
