package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// A source that has lost its journal has a frozen container that no migration is in charge of. The engine's note of the departure names
// the migration and its target. From that note the agent rebuilds the journal, in doubt, and the migration goes on as after a crash: it
// asks the target, and destroys or thaws the copy according to the answer.

// rebuildEvery is the interval at which the agent looks for containers whose journals are lost.
const rebuildEvery = 30 * time.Second

// unknownTarget stands for the target if the engine has noted none: such a target cannot be asked.
const unknownTarget = "unknown-node"

// leave is the engine's note of the migration for which the container leaves.
func (s *source) leave() engine.Leave {
	spec := s.move.tracker.spec
	return engine.Leave{
		Migration: spec.ID, Target: spec.Target, Mode: string(spec.Mode), Started: spec.Started, Stay: s.stay(),
		Incarnation: s.move.record().Incarnation,
	}
}

// rebuild rebuilds the journals of leaving containers whose migrations are not known.
func (m *moves) rebuild(ctx context.Context) {
	containers, err := m.agent.engines.ListAnswered(ctx)
	if err != nil {
		m.agent.log.Warn("cannot look for containers whose journals are lost", "error", err)
		return
	}
	for _, one := range containers {
		if one.Leaving == nil {
			continue
		}
		if m.undone(one) {
			if err := m.agent.embedded.ThawOf(ctx, one.Definition.ID, one.Leaving.Migration); err != nil {
				m.agent.log.Error("container stays marked as leaving although its migration was undone",
					"container", one.Definition.Name, "error", err)
			}
			continue
		}
		if !m.lost(one) {
			continue
		}
		if err := m.rebuildOne(ctx, one.Definition); err != nil {
			m.agent.log.Error("container is left frozen, and its migration cannot be found out; it is tried again", "container", one.Definition.Name,
				"error", err)
		}
	}
}

// undone reports whether the migration for which a container leaves has been undone all the same:
// by an agent of v0.1.0, which does not know the note of the embedded engine that a reboot does not
// lose. That agent may also have begun another migration of the container: its journal may be the
// one that cannot be used.
func (m *moves) undone(one engine.Container) bool {
	id := one.Definition.ID
	if one.Definition.EngineName != "" || m.of(id) != nil || m.unreadOf(id) != "" {
		return false
	}
	record := m.recordOf(one.Leaving.Migration)
	return record != nil && record.Spec.Side == migration.Source && record.Spec.Container == one.Definition.ID &&
		record.State == migration.Done && record.Result == migration.RolledBack
}

// lost reports whether no migration is in charge of a leaving container.
func (m *moves) lost(one engine.Container) bool {
	if m.of(one.Definition.ID) != nil {
		return false
	}
	id := one.Leaving.Migration
	if migration.CheckID(id) != nil {
		return !slices.ContainsFunc(m.unreadable(), func(u unread) bool { return u.spec.Container == one.Definition.ID || u.spec.Container == "" })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id] == nil && m.unused(id) == nil
}

// rebuildOne rebuilds the journal of one container and goes on with its migration. It first asks the engine again: since the container
// was listed, the migration may have begun or ended.
func (m *moves) rebuildOne(ctx context.Context, listed engine.Definition) error {
	one, err := m.agent.engines.Of(listed).Inspect(ctx, listed.ID)
	if err != nil || one.Leaving == nil || !m.lost(one) {
		return err
	}
	leave := *one.Leaving
	spec := migration.Spec{
		ID: leave.Migration, Side: migration.Source, Container: one.Definition.ID, Name: one.Definition.Name, Source: m.agent.self.Name,
		Target: leave.Target, Mode: migration.Mode(leave.Mode), Started: leave.Started,
	}
	if migration.CheckID(spec.ID) != nil || spec.Target == "" { // noted by an agent that did not note it, or not readable
		spec.ID, spec.Target = randomHex(8), unknownTarget
	}
	spec.Mode = cmp.Or(spec.Mode, migration.Cold)
	if spec.Started.IsZero() {
		spec.Started = time.Now().UTC()
	}
	record, err := migration.Rebuilt(spec, fmt.Sprintf("the journal of this migration was lost at %s, and was made anew", m.agent.self.Name))
	if err != nil {
		return err
	}
	record.Incarnation = leave.Incarnation
	definition := one.Definition
	definition.Volumes = slices.Clone(definition.Volumes)
	for i, v := range definition.Volumes { // if it is not known which ones stay, none is removed
		definition.Volumes[i].Stays = leave.Migration == "" || slices.Contains(leave.Stay, v.Key())
	}
	if err := m.journal(spec.ID, definition).write(record); err != nil {
		return err
	}
	m.agent.log.Error("a container was left frozen by a migration whose journal is lost: asking the target where it runs", "container", spec.Name,
		"migration", spec.ID, "target", spec.Target, "state", one.State)
	m.recoverOne(spec.ID)
	return nil
}
