package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/journal/rebuild"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// recover goes on with what was under way when the agent ended, from the journals. Those for which another
// engine is to be asked first wait for that engine only. As long as one does, nobody may be told that it is
// not known: see journal.Unreads.
func (m *moves) recover() error {
	entries, err := os.ReadDir(filepath.Join(m.agent.config.StateDir, "migrations"))
	if err != nil {
		return fmt.Errorf("journals: %w", err)
	}
	var ids []string
	for _, dir := range entries {
		if migration.CheckID(dir.Name()) == nil {
			ids = append(ids, dir.Name())
		}
	}
	m.recoverAll(ids)
	return nil
}

func (m *moves) recoverAll(ids []string) {
	asking := map[string][]string{} // by engine
	for _, id := range ids {
		if name := m.asks(id); name != "" {
			asking[name] = append(asking[name], id)
		} else {
			m.recoverOne(id) // One journal that cannot be read must not keep a node from serving.
		}
	}
	for name, ids := range asking {
		m.agent.looks.Look("migrations of "+name, m.agent.guarded(func() {
			for _, id := range ids {
				m.recoverOne(id)
			}
		}))
	}
}

// asks is the engine other than the node's own that is asked before a migration is recovered; empty: none.
// From then on the migration counts as one that waits for that engine.
func (m *moves) asks(id string) string {
	read, err := journal.Read(m.dir(id))
	if err != nil || !read.Record.DeniesRun() || read.Definition.EngineName == "" {
		return ""
	}
	m.setWaiting(id, read)
	return read.Definition.EngineName
}

// unreadable is a migration whose journal cannot be used.
func (m *moves) unreadable(id string, entry journal.Entry, err error) journal.Unread {
	return journal.NewUnread(id, entry, m.agent.engines.EngineFor(entry.Definition).Name(), err)
}

func (m *moves) setUnread(id string, entry journal.Entry, err error) {
	one := m.unreadable(id, entry, err)
	m.mu.Lock()
	news := m.byID[id] == nil && m.unread.Set(one) // else another attempt has recovered it meanwhile
	m.mu.Unlock()
	if news {
		m.agent.log.Error("migration cannot be recovered; it is tried again", "migration", id, "every",
			journal.RetryEvery, "error", err)
	}
}

// setWaiting notes that a migration waits for its engine, before the engine is asked.
func (m *moves) setWaiting(id string, entry journal.Entry) {
	one := m.unreadable(id, entry, journal.ErrNotAsked)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[id] == nil {
		m.unread.Await(one)
	}
}

// retry tries again to recover what could not be recovered, until ctx ends.
func (m *moves) retry(ctx context.Context) {
	ticker := time.NewTicker(journal.RetryEvery)
	defer ticker.Stop()
	var looked time.Time
	told := inventory.Told{}
	for {
		if time.Since(looked) > rebuild.Every { // an engine may have come back
			m.rebuilder.Soon(ctx)
			m.agent.tellOnce(told, "cannot save notes of containers that a boot would "+
				"lose", m.agent.embedded.KeepNotes())
			looked = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var ids []string
		for _, one := range m.unread.List() {
			ids = append(ids, one.Spec.ID)
		}
		m.recoverAll(ids)
	}
}

func (m *moves) recoverOne(id string) {
	read, err := journal.Read(m.dir(id))
	if errors.Is(err, journal.ErrNone) {
		if err := os.RemoveAll(m.dir(id)); err != nil {
			m.agent.log.Warn("cannot remove the directory of a migration that never began", "error", err)
		}
		return
	}
	var machine *migration.Machine
	var actions []migration.Action
	if err == nil {
		machine, actions, err = migration.Resume(read.Record)
	}
	if err == nil {
		_, err = m.agent.engines.Lookup(read.Definition)
	}
	if err == nil && read.Record.DeniesRun() {
		err = m.agent.contradicted(read.Definition)
	}
	if err != nil {
		m.setUnread(id, read, err)
		return
	}
	file := m.journal(id, read.Definition)
	file.Boot = read.Boot
	move := newMove(m.agent, file, machine)
	move.since = file.Since(read.Record.Spec.Started)
	m.agent.equip(move, read.Definition, nil)
	move.tracker.Load(m.dir(id))
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
		if err := postcopy.RemoveSpill(m.spillPath(id)); err != nil { // an older version knows nothing of it
			m.agent.log.Warn("cannot remove pages on the disk that are no longer needed", "migration", id,
				"error", err)
		}
		// an agent has ended right before it would have left them out, or knew nothing of that
		if journal.HasSecrets(read.Definition) {
			if err := file.Write(read.Record); err != nil {
				m.agent.log.Warn("cannot remove the environment of a moved container from its journal",
					"migration", id, "error", err)
			}
		}
		move.remember() // What it would do it has done, and it does it again when the peer asks.
		return
	}
	m.agent.log.Info("migration recovered", "migration", id, "state", read.Record.State)
	move.begin(actions)
}
