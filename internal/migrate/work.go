package migrate

import (
	"context"
	"log/slog"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/migration"
)

// Work is what one side of a migration does. Every undo bears that its step never began, and can be repeated.
type Work interface {
	// Do does a step of this side. For the restore the time is that of the resume; otherwise it is not used.
	Do(ctx context.Context, step migration.StepName) (time.Time, error)
	Undo(ctx context.Context, step migration.StepName) error
	// Send hands a message to the session, without waiting.
	Send(message migration.Message)
	// Ask asks the target for the outcome; source only.
	Ask(ctx context.Context, abort bool) (migration.Message, error)
	// Unsent keeps the final marker here for good, unless it has left, and tells whether it did; source only.
	Unsent() bool
	// Check finds out what became of the arrival; target only.
	Check(ctx context.Context) (engine.Outcome, time.Time, error)
	// Ended is called once, when the migration has ended on this node.
	Ended(result migration.Finish)
	// Fresh is the same work as after a restart of the agent: it holds nothing.
	Fresh() Work
}

// Node is the node that migrations run on.
type Node interface {
	// Work makes what this node's side of a migration does. The offer is nil after a restart of the agent.
	Work(m *Move, of engine.Definition, offer *api.Offer) Work
	// Changed is told that a migration is about to end that has changed what the container's engine has.
	Changed(of engine.Definition)
	// Ended is told that a migration has ended here.
	Ended()
	// Learn takes the report of a migration that has ended here.
	Learn(report migration.Report, side migration.Side, container string)
}

// Own is the node's own engine. See embedded.Engine.
type Own interface {
	// KeepNotes writes notes to disk that could not be written when they were made.
	KeepNotes() error
	// ResumeOf clears the mark of a container whose migration was undone.
	ResumeOf(ctx context.Context, container, migration string) error
	// Wait waits until a container has ended.
	Wait(ctx context.Context, id string) (exitCode int, err error)
}

// Config of a node's migrations.
type Config struct {
	Node        string // the node's name
	Incarnation string // of its state
	Boot        string // id of the machine's boot
	Dir         string // has a directory for each migration
	Spare       *durable.Spare
	Engines     *engine.Set
	Own         Own
	Looks       *inventory.Looks
	Timeout     time.Duration // of a question to an engine whose answer another node waits for
	On          Node
	// RemoveLeft removes what an older version has left of a migration that has ended.
	RemoveLeft func(id string) error
	// Fault makes happen what a test asked for at a point of a migration; nil: nothing.
	Fault func(ctx context.Context, side migration.Side, step, when string) error
	Log   *slog.Logger
}
