// Package forecast answers what a migration of a container would cost, and by which mode it should go: it
// collects what package predict needs, and measures what is not known if the answer depends on it.
//
// A plan may take longer than a choice, which delays the migration. The package moves nothing, and looks at
// containers and links by way of Config only.
package forecast

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Forecaster makes forecasts of migrations from one node.
type Forecaster struct{ config Config }

// Config is what a Forecaster needs of its node.
type Config struct {
	Node    string // its name
	Engines Engines
	Samples Samples
	Links   Links
	Past    Past
	Speed   func() predict.Machine // of the node, now
	// Trees are the directories of a container that move.
	Trees func(ctx context.Context, of engine.Definition) ([]files.Tree, error)
	// CopyAge is the age of the staged copy of a container at a node; 0: there is none that is whole.
	CopyAge func(container, node string) time.Duration
}

// Engines are those of the node. See engine.Set.
type Engines interface {
	Inspect(ctx context.Context, reference string) (engine.Container, error)
	EngineFor(of engine.Definition) engine.Engine
}

// Samples measure containers. See sampling.Samples.
type Samples interface {
	Known(container string, window, age time.Duration) (predict.Measured, bool)
	Last(container string) (predict.Measured, bool)
	Look(ctx context.Context, of engine.Definition) (predict.Measured, error)
	Measure(ctx context.Context, of engine.Definition, window, age time.Duration) predict.Measured
}

// Links are the links to other nodes.
type Links interface {
	WayTo(node string) predict.Link
	// Measure measures the bandwidth to a node with a short burst.
	Measure(ctx context.Context, node identity.Node) error
	// MeasureBriefly is Measure with no more bytes than matter beside so much memory.
	MeasureBriefly(ctx context.Context, node identity.Node, memory int64) error
}

// Past are the migrations of the past. See sampling.Experience.
type Past interface {
	Of(node, container string, in *predict.Input)
}

// New returns a Forecaster, which remembers nothing.
func New(c Config) *Forecaster { return &Forecaster{c} }
