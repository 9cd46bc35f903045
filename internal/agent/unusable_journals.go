package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/migration"
)

// unreadEvery is how often a journal that could not be used is tried again: the disk may have come back.
const unreadEvery = 10 * time.Second

// unread is a migration whose journal this agent could not use. Its container may be frozen here,
// or run here; so nothing may be said of it, and nobody may take its id.
type unread struct {
	spec       migration.Spec    // as far as it could be read
	definition engine.Definition // of the container, likewise
	engine     string            // its name
	err        error
}

// waits reports whether the migration only waits for the container's engine to confirm its journal. Until
// then the container counts as being migrated.
func (u unread) waits() bool { return errors.Is(u.err, errNotTold) }

// busy is the error for a request that concerns a migration that waits for an engine, or its container.
func (u unread) busy() error {
	return fmt.Errorf("%w: container %s is being migrated (%s), and the migration waits for engine %s: "+
		"make %s answer, or wait: %w", engine.ErrBusy, u.spec.Name, u.spec.ID, u.engine, u.engine, u.err)
}

func (m *moves) newUnread(id string, entry entry, err error) unread {
	spec := entry.Record.Spec
	spec.ID = id
	return unread{spec: spec, definition: entry.Definition,
		engine: m.agent.engines.EngineFor(entry.Definition).Name(), err: err}
}

func (m *moves) setUnread(id string, entry entry, err error) {
	one := m.newUnread(id, entry, err)
	m.mu.Lock()
	known, was := m.byID[id] != nil, m.unread[id].err // known: another attempt has recovered it meanwhile
	if !known {
		m.unread[id] = one
	}
	m.mu.Unlock()
	if !known && (was == nil || was.Error() != err.Error()) {
		m.agent.log.Error("migration cannot be recovered; it is tried again", "migration", id, "every",
			unreadEvery, "error", err)
	}
}

// setWaiting notes that a migration waits for its engine, before the engine is asked.
func (m *moves) setWaiting(id string, entry entry) {
	one := m.newUnread(id, entry, errNotAsked)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.unread[id]; !known && m.byID[id] == nil {
		m.unread[id] = one
	}
}

// waiting lists the migrations that wait for their engines. The caller has locked mu.
func (m *moves) waiting() (list []unread) {
	for _, one := range m.unread {
		if one.waits() {
			list = append(list, one)
		}
	}
	return list
}

// refuse returns the error for a request that concerns a container that is being migrated, or nil.
func (m *moves) refuse(container string) error {
	m.mu.Lock()
	move, waits := m.underWay(container), m.refuseWaiting(container)
	m.mu.Unlock()
	if move != nil {
		return move.busy()
	}
	return waits
}

// refuseWaiting does that for migrations that wait for their engines. The caller has locked mu.
func (m *moves) refuseWaiting(container string) error {
	for _, one := range m.waiting() {
		if one.spec.Container == container {
			return one.busy()
		}
	}
	return nil
}

// moving reports whether a container is being migrated.
func (m *moves) moving(container string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.underWay(container) != nil || m.refuseWaiting(container) != nil
}

// examineWaiting lists what stands against a container from another node while migrations wait for their
// engines: what has arrived of the container itself, and volumes of which a part may be here.
func (m *moves) examineWaiting(definition engine.Definition) (problems []migration.Problem) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.waiting() {
		remedy := fmt.Sprintf("make %s answer on %s, or wait", one.engine, m.agent.self.Name)
		why := fmt.Sprintf("migration %s of container %s to %s waits for engine %s there",
			one.spec.ID, one.spec.Name, m.agent.self.Name, one.engine)
		if one.spec.Container == definition.ID {
			problems = append(problems,
				migration.Problem{What: "container " + definition.Name, Why: why, Remedy: remedy})
			continue
		}
		for _, v := range one.definition.Volumes {
			if !v.Stays && slices.ContainsFunc(definition.Volumes, v.Overlaps) {
				problems = append(problems,
					migration.Problem{What: v.String(), Why: why + ", and moves it, too", Remedy: remedy})
			}
		}
	}
	return problems
}

// retry tries again to recover what could not be recovered, until ctx ends.
func (m *moves) retry(ctx context.Context) {
	ticker := time.NewTicker(unreadEvery)
	defer ticker.Stop()
	var looked time.Time
	told := inventory.Told{}
	for {
		if time.Since(looked) > rebuildEvery { // an engine may have come back
			m.rebuildSoon(ctx)
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
		for _, one := range m.unreadable() {
			ids = append(ids, one.spec.ID)
		}
		m.recoverAll(ids)
	}
}

// unreadable lists the migrations whose journals could not be used.
func (m *moves) unreadable() []unread {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]unread, 0, len(m.unread))
	for _, one := range m.unread {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b unread) int { return cmp.Compare(a.spec.ID, b.spec.ID) })
	return list
}

// unreadOf names a migration whose journal could not be used, and that may be the container's.
func (m *moves) unreadOf(container string) string {
	return m.unreadAmong(container, "")
}

// unreadAmong names a migration whose journal could not be used, and that is of one of these
// containers; "": whose is not known.
func (m *moves) unreadAmong(containers ...string) string {
	for _, one := range m.unreadable() {
		if slices.Contains(containers, one.spec.Container) {
			return one.spec.ID
		}
	}
	return ""
}

// unusable says what a user does about a container that leaves by a migration of which the journal
// may be one that cannot be used; empty: there is no such journal.
func (m *moves) unusable(one engine.Container) string {
	id := m.unreadOf(one.Definition.ID)
	if id == "" {
		return ""
	}
	return fmt.Sprintf("; the journal of migration %s cannot be used: if it cannot be repaired, move %s "+
		"away and start the agent again: the journal is made anew from the engine's note, and the target "+
		"is asked", id,
		m.dir(id))
}

// report tells users that the journal needs their attention.
func (u unread) report() migration.Report {
	text := fmt.Sprintf("its journal cannot be used: %v; the agent tries again every %s, and leaves the "+
		"migration alone meanwhile", u.err, unreadEvery)
	if u.waits() {
		text = fmt.Sprintf("waits for engine %s to confirm that the container was not resumed on this node; "+
			"the agent asks %s again every %s, and leaves the migration alone meanwhile", u.engine,
			u.engine, unreadEvery)
	}
	return migration.Report{
		Migration: u.spec.ID, Container: u.spec.Name, Source: u.spec.Source, Target: u.spec.Target,
		Mode:    u.spec.Mode,
		Started: u.spec.Started, Result: migration.ResultDoubt, Error: &text,
		Phases: []migration.Phase{}, Rounds: []migration.Round{},
	}
}

// unused tells by an error that there is a journal of a migration that this agent does not know: it
// could not be read, so nobody may be told that the migration is not known here. The caller has
// locked mu.
func (m *moves) unused(id string) error {
	if migration.CheckID(id) != nil {
		return nil // It names no file.
	}
	if one, ok := m.unread[id]; ok && one.waits() {
		return one.busy()
	} else if ok {
		return fmt.Errorf("%w: the journal of migration %s cannot be used: %w; it is tried again",
			engine.ErrBusy, id, one.err)
	}
	_, err := os.Lstat(filepath.Join(m.dir(id), journalName))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w: whether there is a journal of migration %s: %w", engine.ErrBusy, id, err)
	}
	return fmt.Errorf("%w: there is a journal of migration %s that was not read", engine.ErrBusy, id)
}
