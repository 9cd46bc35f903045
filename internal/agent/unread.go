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
	"github.com/godwit/godwit/internal/migration"
)

// unreadEvery is how often a journal that could not be used is tried again: the disk may have come back.
const unreadEvery = 10 * time.Second

// unread is a migration whose journal this agent could not use. Its container may be frozen here, or run here; so
// nothing may be said of it, and nobody may take its id.
type unread struct {
	spec migration.Spec // as far as it could be read
	err  error
}

func (m *moves) setUnread(id string, entry entry, err error) {
	m.agent.log.Error("migration cannot be recovered; it is tried again", "migration", id, "every", unreadEvery, "error", err)
	spec := entry.Record.Spec
	spec.ID = id
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unread[id] = unread{spec: spec, err: err}
}

// retry tries again to recover what could not be recovered, until ctx ends.
func (m *moves) retry(ctx context.Context) {
	ticker := time.NewTicker(unreadEvery)
	defer ticker.Stop()
	var looked time.Time
	told := map[string]string{}
	for {
		if time.Since(looked) > rebuildEvery { // an engine may have come back
			m.agent.looks.look("lost journals", m.agent.guarded(func() { m.rebuild(ctx) }))
			m.agent.tellOnce(told, "notes of containers that a boot would lose", m.agent.embedded.KeepNotes())
			looked = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, one := range m.unreadable() {
			m.recoverOne(one.spec.ID)
		}
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
	return fmt.Sprintf("; the journal of migration %s cannot be used: if it cannot be repaired, move %s away and start "+
		"the agent again: the journal is made anew from the engine's note, and the target is asked", id, m.dir(id))
}

// report tells users that the journal needs their attention.
func (u unread) report() migration.Report {
	text := fmt.Sprintf("its journal cannot be used: %v; it is tried again every %s, and nothing of it is touched meanwhile",
		u.err, unreadEvery)
	return migration.Report{
		Migration: u.spec.ID, Container: u.spec.Name, Source: u.spec.Source, Target: u.spec.Target, Mode: u.spec.Mode,
		Started: u.spec.Started, Result: migration.ResultDoubt, Error: &text,
		Phases: []migration.Phase{}, Rounds: []migration.Round{},
	}
}

// unused tells by an error that there is a journal of a migration that this agent does not know: it could not be read,
// so nobody may be told that the migration is not known here. The caller has locked mu.
func (m *moves) unused(id string) error {
	if migration.CheckID(id) != nil {
		return nil // It names no file.
	}
	if one, ok := m.unread[id]; ok {
		return fmt.Errorf("%w: the journal of migration %s cannot be used: %w; it is tried again", engine.ErrBusy, id, one.err)
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
