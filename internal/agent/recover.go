package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// recover goes on with what was under way when the agent ended, from the journals. Those for which another
// engine is to be asked first wait for that engine only. As long as one does, nobody may be told that it is
// not known: see unused.
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
	read, err := readEntry(m.dir(id))
	if err != nil || !read.Record.DeniesRun() || read.Definition.EngineName == "" {
		return ""
	}
	m.setWaiting(id, read)
	return read.Definition.EngineName
}

func (m *moves) recoverOne(id string) {
	read, err := readEntry(m.dir(id))
	if errors.Is(err, errNoJournal) {
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
	journal := m.journal(id, read.Definition)
	journal.boot = read.Boot
	move := newMove(m.agent, journal, machine)
	move.since = journal.since(read.Record.Spec.Started)
	m.agent.equip(move, read.Definition, nil)
	move.tracker.Load(m.dir(id))
	m.mu.Lock()
	known := m.byID[id] != nil || m.over // another attempt has recovered it meanwhile, or the next agent will
	if !known {
		delete(m.unread, id)
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
		if hasSecrets(read.Definition) {
			if err := journal.write(read.Record); err != nil {
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
