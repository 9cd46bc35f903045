package rebuild

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

// Every is the interval at which the agent looks for containers whose journals are lost.
const Every = 30 * time.Second

// unknownTarget stands for the target if the engine has noted none: such a target cannot be asked.
const unknownTarget = "unknown-node"

// Rebuilder rebuilds the journals of one node.
type Rebuilder struct {
	config     Config
	rebuilding checkpoint.Locks // by engine: see Rebuild

	mu      sync.Mutex
	removed map[string][]string // by engine: see noteRemoved
}

// Config is what a Rebuilder needs of its node.
type Config struct {
	Node       string // its name
	Engines    Engines
	Looks      Looks
	Migrations Migrations
	Unread     *journal.Unreads
	// Resume clears the mark of a container of the node's own engine whose migration was undone.
	Resume func(ctx context.Context, container, migration string) error
	NewID  func() string // of a migration
	Log    *slog.Logger
}

// Engines are those of the node. See engine.Set.
type Engines interface {
	All() []engine.Engine
	Ask(ctx context.Context, one engine.Engine) ([]engine.Container, error)
	EngineFor(of engine.Definition) engine.Engine
	Leaves() ([]engine.Leave, error)
}

// Looks wait for no engine that hangs. See inventory.Looks.
type Looks interface {
	Look(name string, do func())
}

// Migrations are those of the node.
type Migrations interface {
	// Moving reports whether a container is being migrated.
	Moving(container string) bool
	// Known reports whether there is a migration, also one whose journal cannot be used.
	Known(id string) bool
	// Record is what is known of a migration; nil: its journal cannot be used, or there is none.
	Record(id string) *migration.Record
	// Write makes the journal of a migration, and Recover goes on from it.
	Write(record migration.Record, of engine.Definition) error
	Recover(id string)
}

// New returns a Rebuilder that has asked no engine yet.
func New(c Config) *Rebuilder { return &Rebuilder{config: c, removed: map[string][]string{}} }

// LeavesYet tells by an error that a container here leaves for a migration that is not known, or may: the
// journal is lost, and the copy here may have pages that nobody else has. So the target may not be told
// that all has come to its end before the journal is rebuilt, for which the container's engine may have to
// answer. If the engine lists no such container, somebody has removed the copy, and there is nothing to
// rebuild.
func (r *Rebuilder) LeavesYet(id string) error {
	if r.copyRemoved(id) {
		return nil
	}
	leaves, err := r.config.Engines.Leaves()
	if slices.ContainsFunc(leaves, func(one engine.Leave) bool { return one.Migration == id }) {
		return fmt.Errorf("%w: %s has lost the journal of migration %s, and makes it anew when the "+
			"container's engine answers", engine.ErrBusy, r.config.Node, id)
	}
	if err != nil {
		return fmt.Errorf("%w: %s does not know whether a container leaves there for migration %s: %w",
			engine.ErrBusy, r.config.Node, id, err)
	}
	return nil
}

// Soon rebuilds the journals of all engines' containers, and waits for no engine that hangs.
func (r *Rebuilder) Soon(ctx context.Context) {
	for _, one := range r.config.Engines.All() {
		r.config.Looks.Look("lost journals of "+one.Name(),
			guard.Logged(r.config.Log, func() { r.Rebuild(ctx, one) }))
	}
}

// Rebuild rebuilds the journals of leaving containers of an engine whose migrations are not known. There is
// one rebuild at a time: two would overwrite each other's journals, or invent two ids for one migration.
func (r *Rebuilder) Rebuild(ctx context.Context, of engine.Engine) {
	unlock, err := r.rebuilding.LockBefore(ctx, of.Name())
	if err != nil {
		return // the caller has given up
	}
	defer unlock()
	noted := leavesOf(of)
	containers, err := r.config.Engines.Ask(ctx, of)
	if err != nil {
		if !errors.Is(err, engine.ErrAway) && ctx.Err() == nil {
			r.config.Log.Warn("cannot look for containers whose journals are lost", "engine", of.Name(),
				"error", err)
		}
		return
	}
	r.noteRemoved(of, noted, containers)
	for _, one := range containers {
		if one.Leaving == nil {
			continue
		}
		if r.undone(one) {
			if err := r.config.Resume(ctx, one.Definition.ID, one.Leaving.Migration); err != nil {
				r.config.Log.Error("cannot clear the mark of a container whose migration was undone",
					"container", one.Definition.Name, "error", err)
			}
			continue
		}
		if !r.lost(one) {
			continue
		}
		if err := r.rebuildOne(ctx, one.Definition); err != nil {
			r.config.Log.Error("a container is left frozen, and its migration cannot be found; the agent "+
				"tries again", "container", one.Definition.Name,
				"error", err)
		}
	}
}

// leavesOf are the notes of an engine's containers that leave, as far as they can be read.
func leavesOf(of engine.Engine) []engine.Leave {
	noter := of.Capabilities().LeaveNoter
	if noter == nil {
		return nil
	}
	leaves, _ := noter.Leaves() // who needs to know all of them reads them, too
	return leaves
}

// noteRemoved notes the migrations for which an engine has a note but no container any more. A damaged
// container without such a note may be the copy of any of them: none counts as removed as long as there is
// one.
func (r *Rebuilder) noteRemoved(of engine.Engine, noted []engine.Leave, listed []engine.Container) {
	unclear := slices.ContainsFunc(listed, func(one engine.Container) bool {
		return one.State == engine.Damaged && one.Leaving == nil
	})
	var removed []string
	for _, leave := range noted {
		if !unclear && !slices.ContainsFunc(listed, func(one engine.Container) bool {
			return one.Leaving != nil && one.Leaving.Migration == leave.Migration
		}) {
			removed = append(removed, leave.Migration)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed[of.Name()] = removed
}

// copyRemoved reports whether the copy that a migration has left here was missing when its engine was last
// asked.
func (r *Rebuilder) copyRemoved(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, removed := range r.removed {
		if slices.Contains(removed, id) {
			return true
		}
	}
	return false
}

// undone reports whether the migration for which a container leaves has been undone all the same:
// by an agent of v0.1.0, which does not know the note of the embedded engine that a reboot does not
// lose. That agent may also have begun another migration of the container: its journal may be the
// one that cannot be used.
func (r *Rebuilder) undone(one engine.Container) bool {
	id := one.Definition.ID
	if one.Definition.EngineName != "" || r.config.Migrations.Moving(id) || r.config.Unread.Of(id) != "" {
		return false
	}
	record := r.config.Migrations.Record(one.Leaving.Migration)
	return record != nil && record.Spec.Side == migration.Source &&
		record.Spec.Container == one.Definition.ID &&
		record.State == migration.Done && record.Result == migration.RolledBack
}

// lost reports whether no migration is in charge of a leaving container.
func (r *Rebuilder) lost(one engine.Container) bool {
	if r.config.Migrations.Moving(one.Definition.ID) {
		return false
	}
	id := one.Leaving.Migration
	if migration.CheckID(id) != nil {
		return !slices.ContainsFunc(r.config.Unread.List(), func(u journal.Unread) bool {
			return u.Spec.Container == one.Definition.ID || u.Spec.Container == ""
		})
	}
	return !r.config.Migrations.Known(id)
}

// rebuildOne rebuilds the journal of one container and goes on with its migration. It first asks
// the engine again: since the container was listed, the migration may have begun or ended.
func (r *Rebuilder) rebuildOne(ctx context.Context, listed engine.Definition) error {
	one, err := r.config.Engines.EngineFor(listed).Inspect(ctx, listed.ID)
	if err != nil || one.Leaving == nil || !r.lost(one) {
		return err
	}
	leave := *one.Leaving
	spec := migration.Spec{
		ID: leave.Migration, Side: migration.Source, Container: one.Definition.ID, Name: one.Definition.Name,
		Source: r.config.Node,
		Target: leave.Target, Mode: migration.Mode(leave.Mode), Started: leave.Started,
	}
	// noted by an agent that did not note it, or not readable
	if migration.CheckID(spec.ID) != nil || spec.Target == "" {
		spec.ID, spec.Target = r.config.NewID(), unknownTarget
	}
	spec.Mode = cmp.Or(spec.Mode, migration.Cold)
	if spec.Started.IsZero() {
		spec.Started = time.Now().UTC()
	}
	record, err := migration.Rebuilt(spec,
		fmt.Sprintf("the journal of this migration was lost at %s, and was made anew", r.config.Node))
	if err != nil {
		return err
	}
	record.Incarnation = leave.Incarnation
	definition := one.Definition
	definition.Volumes = slices.Clone(definition.Volumes)
	for i, v := range definition.Volumes { // if it is not known which ones stay, none is removed
		definition.Volumes[i].Stays = leave.Migration == "" || slices.Contains(leave.Stay, v.Key())
	}
	if err := r.config.Migrations.Write(record, definition); err != nil {
		return err
	}
	r.config.Log.Error("a container was left frozen by a migration whose journal is lost: asking the target "+
		"where it runs", "container", spec.Name,
		"migration", spec.ID, "target", spec.Target, "state", one.State)
	r.config.Migrations.Recover(spec.ID)
	return nil
}
