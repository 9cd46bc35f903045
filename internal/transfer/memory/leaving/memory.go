package leaving

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/frozen"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// Engine is the engine of the container.
type Engine interface {
	Processes(ctx context.Context, container string) ([]int, error)
	CPUTime(ctx context.Context, container string) (time.Duration, error)
	// Throttle limits the container to so many processors; 0: to as many as it may use.
	Throttle(ctx context.Context, container string, cpus float64) error
}

// Stages are the copies of this node's containers that are staged at other nodes; staging.Stages does.
type Stages interface {
	Of(container string) *staging.Stage
	Drop(ctx context.Context, container string, why error) error
}

// Terms are what the nodes have told each other before memory leaves.
type Terms interface {
	Offer() *api.Offer             // nil: nothing was offered yet
	Reservation() *api.Reservation // nil: the target has reserved nothing yet
}

// Container is the container that leaves.
type Container struct {
	ID, Name string
	Limit    int64 // of its memory; 0: none
}

// Config is what the memory of a migration is made of.
type Config struct {
	Migration string // its id
	Mode      migration.Mode
	Container Container
	Node      string // the name of this node
	Target    string // the name of the other node
	Engine    func() Engine
	Link      *link.Link
	Settings  rounds.Settings
	Figures   *progress.Tracker
	Terms     Terms
	Stages    Stages
	Files     func() time.Duration // that files make the freeze longer
	Split     *rounds.Split        // nil: all is handed over, or will be undone
	Auto      *rounds.Auto         // nil: the user has named the mode
	After     After
	Residual  Residual
	// Fault happens in the middle of a round; nil: nothing goes wrong.
	Fault  func(ctx context.Context, step, when string) error
	Ended  <-chan struct{} // closed when the migration has ended
	Broken func(err error) // is told of a panic
	Log    *slog.Logger
}

// After is what the push needs after the handover.
type After struct {
	Copy      *frozen.Copy
	Migration push.Migration
	Spill     string // the path of the pages on the disk
	// Ask calls the target.
	Ask     func(ctx context.Context, call func(context.Context, api.PeerClient) error) error
	Decide  string        // what an operator can do who has to decide
	Silence time.Duration // for how long nothing may come from the target
}

// Residual is what a residual copy needs.
type Residual struct {
	Copies *residual.Copies
	Dir    string               // where a file system is mounted for a moment
	Keep   func() time.Duration // for how long the container's policy wants one; 0: it wants none
}

// Memory is the memory of a container that leaves.
type Memory struct {
	ctx    context.Context //nolint:containedctx // The life of the node: tracking outlasts a step.
	config Config
	track  func(memory.SourceConfig) rounds.Pages // only tests have others than those of memory.Source

	mu    sync.Mutex
	pages *precopy.Sender // nil: no page was sent yet

	rounds *rounds.Rounds // nil: all memory is in the execution state
	turn   rounds.Turn
	staged *staging.Taken // the copy that was staged at the target; nil: nothing was staged
	slowed bool           // the container may have been slowed down, as far as is known here
	push   *push.Source   // pages that follow when the container was handed over
}

// New makes the memory of a container of which nothing has left. ctx is the life of the node.
func New(ctx context.Context, config Config) *Memory {
	m := &Memory{ctx: ctx, config: config,
		track: func(of memory.SourceConfig) rounds.Pages { return memory.NewSource(of) }}
	m.push = m.newPush()
	return m
}

// MaySlow says that an earlier agent may have slowed the container down.
func (m *Memory) MaySlow() { m.slowed = true }

// Ahead reports whether memory leaves ahead of the execution state.
func (m *Memory) Ahead() bool { return m.rounds != nil }

// Split bounds how long both nodes are needed after the handover.
func (m *Memory) Split() *rounds.Split { return m.config.Split }

// Turn lets a user, or the clock, end the rounds.
func (m *Memory) Turn() *rounds.Turn { return &m.turn }

// Untrack leaves nothing of the tracking in the processes. After a crash of the agent the kernel has seen to
// that. The engine is asked only about a container that may have been slowed down: it may be away, and then
// all others need not wait for it.
func (m *Memory) Untrack(ctx context.Context) error {
	var closed error
	if r := m.rounds; r != nil {
		m.rounds, m.slowed = nil, m.slowed || r.Slowed()
		closed = r.Close()
	}
	if !m.slowed {
		return closed
	}
	if err := m.config.Engine().Throttle(ctx, m.config.Container.ID, 0); err != nil {
		return errors.Join(closed, err)
	}
	m.slowed = false
	m.config.Figures.Throttled(0, time.Now())
	return closed
}
