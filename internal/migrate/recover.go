package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/journal/rebuild"
	"github.com/godwit/godwit/internal/migration"
)

// Recovery goes on with migrations from their journals, and makes lost journals anew.
type Recovery struct {
	moves     *Moves
	rebuilder *rebuild.Rebuilder
}

// NewRecovery returns the recovery of a node's migrations.
func NewRecovery(moves *Moves) *Recovery {
	r := &Recovery{moves: moves}
	c := moves.config
	r.rebuilder = rebuild.New(rebuild.Config{
		Node: c.Node, Engines: c.Engines, Looks: c.Looks, Migrations: rebuilt{r}, Unread: moves.unread,
		Resume: c.Own.ResumeOf, NewID: NewID, Log: c.Log,
	})
	return r
}

// Rebuild makes lost journals of containers of an engine anew.
func (r *Recovery) Rebuild(ctx context.Context, of engine.Engine) { r.rebuilder.Rebuild(ctx, of) }

// LeavesYet is nil if a migration that is not known has come to its end here: no container is here that
// leaves for it.
func (r *Recovery) LeavesYet(id string) error { return r.rebuilder.LeavesYet(id) }

// All goes on with what was under way when the agent ended, from the journals. Those for which another
// engine is to be asked first wait for that engine only. As long as one does, nobody may be told that it is
// not known: see journal.Unreads.
func (r *Recovery) All() error {
	entries, err := os.ReadDir(r.moves.config.Dir)
	if err != nil {
		return fmt.Errorf("journals: %w", err)
	}
	var ids []string
	for _, dir := range entries {
		if migration.CheckID(dir.Name()) == nil {
			ids = append(ids, dir.Name())
		}
	}
	r.recover(ids)
	return nil
}

func (r *Recovery) recover(ids []string) {
	asking := map[string][]string{} // by engine
	for _, id := range ids {
		if name := r.asks(id); name != "" {
			asking[name] = append(asking[name], id)
		} else {
			r.One(id) // One journal that cannot be read must not keep a node from serving.
		}
	}
	for name, ids := range asking {
		r.moves.config.Looks.Look("migrations of "+name, guard.Logged(r.moves.config.Log, func() {
			for _, id := range ids {
				r.One(id)
			}
		}))
	}
}

// asks is the engine other than the node's own that is asked before a migration is recovered; empty: none.
// From then on the migration counts as one that waits for that engine.
func (r *Recovery) asks(id string) string {
	read, err := journal.Read(r.moves.Dir(id))
	if err != nil || !read.Record.DeniesRun() || read.Definition.EngineName == "" {
		return ""
	}
	r.setWaiting(id, read)
	return read.Definition.EngineName
}

// unreadable is a migration whose journal cannot be used.
func (r *Recovery) unreadable(id string, entry journal.Entry, err error) journal.Unread {
	return journal.NewUnread(id, entry, r.moves.config.Engines.EngineFor(entry.Definition).Name(), err)
}

func (r *Recovery) setUnread(id string, entry journal.Entry, err error) {
	one := r.unreadable(id, entry, err)
	m := r.moves
	m.mu.Lock()
	news := m.byID[id] == nil && m.unread.Set(one) // else another attempt has recovered it meanwhile
	m.mu.Unlock()
	if news {
		m.config.Log.Error("migration cannot be recovered; it is tried again", "migration", id, "every",
			journal.RetryEvery, "error", err)
	}
}

// setWaiting notes that a migration waits for its engine, before the engine is asked.
func (r *Recovery) setWaiting(id string, entry journal.Entry) {
	one := r.unreadable(id, entry, journal.ErrNotAsked)
	r.moves.mu.Lock()
	defer r.moves.mu.Unlock()
	if r.moves.byID[id] == nil {
		r.moves.unread.Await(one)
	}
}

// Retry tries again to recover what could not be recovered, until ctx ends.
func (r *Recovery) Retry(ctx context.Context) {
	ticker := time.NewTicker(journal.RetryEvery)
	defer ticker.Stop()
	var looked time.Time
	told := inventory.Told{}
	for {
		if time.Since(looked) > rebuild.Every { // an engine may have come back
			r.rebuilder.Soon(ctx)
			r.keepNotes(told)
			looked = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var ids []string
		for _, one := range r.moves.unread.List() {
			ids = append(ids, one.Spec.ID)
		}
		r.recover(ids)
	}
}

// keepNotes logs an error, unless it is what was told last.
func (r *Recovery) keepNotes(told inventory.Told) {
	const what = "cannot save notes of containers that a boot would lose"
	if err := r.moves.config.Own.KeepNotes(); told.News(what, err) && r.moves.ctx.Err() == nil {
		r.moves.config.Log.Warn(what, "error", err)
	}
}

// One goes on with a migration from its journal.
func (r *Recovery) One(id string) {
	m := r.moves
	read, err := journal.Read(m.Dir(id))
	if errors.Is(err, journal.ErrNone) {
		if err := os.RemoveAll(m.Dir(id)); err != nil {
			m.config.Log.Warn("cannot remove the directory of a migration that never began", "error", err)
		}
		return
	}
	var machine *migration.Machine
	var actions []migration.Action
	if err == nil {
		machine, actions, err = migration.Resume(read.Record)
	}
	if err == nil {
		_, err = m.config.Engines.Lookup(read.Definition)
	}
	if err == nil && read.Record.DeniesRun() {
		err = outcomes{m}.contradicted(read.Definition)
	}
	if err != nil {
		r.setUnread(id, read, err)
		return
	}
	file := m.newJournal(id, read.Definition)
	file.Boot = read.Boot
	move := m.newMove(file, machine)
	move.since = file.Since(read.Record.Spec.Started)
	move.Take(m.config.On.Work(move, read.Definition, nil))
	move.Tracker.Load(m.Dir(id))
	m.mu.Lock()
	known := m.byID[id] != nil || m.over // another attempt has recovered it meanwhile, or the next agent will
	if !known {
		m.unread.Forget(id)
		m.byID[id] = move
	}
	m.mu.Unlock()
	if known {
		return
	}
	if read.Record.State == migration.Done {
		r.over(move, read)
		return
	}
	m.config.Log.Info("migration recovered", "migration", id, "state", read.Record.State)
	move.Begin(actions)
}

// over makes a migration one that has ended, and removes what older versions have left of it.
func (r *Recovery) over(move *Move, read journal.Entry) {
	log, id := r.moves.config.Log, move.Tracker.Spec.ID
	if err := r.moves.config.RemoveLeft(id); err != nil { // an older version knows nothing of it
		log.Warn("cannot remove pages on the disk that are no longer needed", "migration", id, "error", err)
	}
	// an agent has ended right before it would have left them out, or knew nothing of that
	if journal.HasSecrets(read.Definition) {
		if err := move.Journal.Write(read.Record); err != nil {
			log.Warn("cannot remove the environment of a moved container from its journal", "migration", id,
				"error", err)
		}
	}
	move.remember() // What it would do it has done, and it does it again when the peer asks.
}

// rebuilt are migrations whose journals are rebuilt.
type rebuilt struct{ of *Recovery }

// Moving implements rebuild.Migrations.
func (r rebuilt) Moving(container string) bool { return r.of.moves.Moving(container) }

// Known implements rebuild.Migrations.
func (r rebuilt) Known(id string) bool {
	m := r.of.moves
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id] != nil || m.unread.Check(id) != nil
}

// Record implements rebuild.Migrations.
func (r rebuilt) Record(id string) *migration.Record { return r.of.moves.RecordOf(id) }

// Write implements rebuild.Migrations.
func (r rebuilt) Write(record migration.Record, of engine.Definition) error {
	return r.of.moves.newJournal(record.Spec.ID, of).Write(record)
}

// Recover implements rebuild.Migrations.
func (r rebuilt) Recover(id string) { r.of.One(id) }
