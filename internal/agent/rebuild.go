package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// A source that has lost its journal has a frozen container that no migration is in charge of. The
// engine's note of the departure names the migration and its target. From that note the agent
// rebuilds the journal, in doubt, and the migration goes on as after a crash: it asks the target,
// and destroys or thaws the copy according to the answer.

// rebuildEvery is the interval at which the agent looks for containers whose journals are lost.
const rebuildEvery = 30 * time.Second

// unknownTarget stands for the target if the engine has noted none: such a target cannot be asked.
const unknownTarget = "unknown-node"

// leave is the engine's note of the migration for which the container leaves.
func (s *source) leave() engine.Leave {
	spec := s.move.tracker.Spec
	return engine.Leave{
		Migration: spec.ID, Target: spec.Target, Mode: string(spec.Mode), Started: spec.Started,
		Stay:        s.stay(),
		Incarnation: s.move.record().Incarnation,
	}
}

// leavesYet tells by an error that a container here leaves for a migration that is not known, or may: the
// journal is lost, and the copy here may have pages that nobody else has. So the target may not be told
// that all has come to its end before the journal is rebuilt, for which the container's engine may have to
// answer. If the engine lists no such container, somebody has removed the copy, and there is nothing to
// rebuild.
func (m *moves) leavesYet(id string) error {
	if m.copyRemoved(id) {
		return nil
	}
	leaves, err := m.agent.engines.Leaves()
	if slices.ContainsFunc(leaves, func(one engine.Leave) bool { return one.Migration == id }) {
		return fmt.Errorf("%w: %s has lost the journal of migration %s, and makes it anew when the "+
			"container's engine answers", engine.ErrBusy, m.agent.self.Name, id)
	}
	if err != nil {
		return fmt.Errorf("%w: %s does not know whether a container leaves there for migration %s: %w",
			engine.ErrBusy, m.agent.self.Name, id, err)
	}
	return nil
}

// rebuildSoon rebuilds the journals of all engines' containers, and waits for no engine that hangs.
func (m *moves) rebuildSoon(ctx context.Context) {
	for _, one := range m.agent.engines.All() {
		m.agent.looks.Look("lost journals of "+one.Name(), m.agent.guarded(func() { m.rebuild(ctx, one) }))
	}
}

// rebuild rebuilds the journals of leaving containers of an engine whose migrations are not known. There is
// one rebuild at a time: two would overwrite each other's journals, or invent two ids for one migration.
func (m *moves) rebuild(ctx context.Context, of engine.Engine) {
	unlock, err := m.rebuilding.LockBefore(ctx, of.Name())
	if err != nil {
		return // the caller has given up
	}
	defer unlock()
	noted := leavesOf(of)
	containers, err := m.agent.engines.Ask(ctx, of)
	if err != nil {
		if !errors.Is(err, engine.ErrAway) && ctx.Err() == nil {
			m.agent.log.Warn("cannot look for containers whose journals are lost", "engine", of.Name(),
				"error", err)
		}
		return
	}
	m.noteRemoved(of, noted, containers)
	for _, one := range containers {
		if one.Leaving == nil {
			continue
		}
		if m.undone(one) {
			if err := m.agent.embedded.ResumeOf(ctx, one.Definition.ID, one.Leaving.Migration); err != nil {
				m.agent.log.Error("cannot clear the mark of a container whose migration was undone",
					"container", one.Definition.Name, "error", err)
			}
			continue
		}
		if !m.lost(one) {
			continue
		}
		if err := m.rebuildOne(ctx, one.Definition); err != nil {
			m.agent.log.Error("a container is left frozen, and its migration cannot be found; the agent "+
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
func (m *moves) noteRemoved(of engine.Engine, noted []engine.Leave, listed []engine.Container) {
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
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed[of.Name()] = removed
}

// copyRemoved reports whether the copy that a migration has left here was missing when its engine was last
// asked.
func (m *moves) copyRemoved(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, removed := range m.removed {
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
func (m *moves) undone(one engine.Container) bool {
	id := one.Definition.ID
	if one.Definition.EngineName != "" || m.of(id) != nil || m.unreadOf(id) != "" {
		return false
	}
	record := m.recordOf(one.Leaving.Migration)
	return record != nil && record.Spec.Side == migration.Source &&
		record.Spec.Container == one.Definition.ID &&
		record.State == migration.Done && record.Result == migration.RolledBack
}

// lost reports whether no migration is in charge of a leaving container.
func (m *moves) lost(one engine.Container) bool {
	if m.moving(one.Definition.ID) {
		return false
	}
	id := one.Leaving.Migration
	if migration.CheckID(id) != nil {
		return !slices.ContainsFunc(m.unreadable(),
			func(u unread) bool { return u.spec.Container == one.Definition.ID || u.spec.Container == "" })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id] == nil && m.unused(id) == nil
}

// rebuildOne rebuilds the journal of one container and goes on with its migration. It first asks
// the engine again: since the container was listed, the migration may have begun or ended.
func (m *moves) rebuildOne(ctx context.Context, listed engine.Definition) error {
	one, err := m.agent.engines.EngineFor(listed).Inspect(ctx, listed.ID)
	if err != nil || one.Leaving == nil || !m.lost(one) {
		return err
	}
	leave := *one.Leaving
	spec := migration.Spec{
		ID: leave.Migration, Side: migration.Source, Container: one.Definition.ID, Name: one.Definition.Name,
		Source: m.agent.self.Name,
		Target: leave.Target, Mode: migration.Mode(leave.Mode), Started: leave.Started,
	}
	// noted by an agent that did not note it, or not readable
	if migration.CheckID(spec.ID) != nil || spec.Target == "" {
		spec.ID, spec.Target = randomHex(8), unknownTarget
	}
	spec.Mode = cmp.Or(spec.Mode, migration.Cold)
	if spec.Started.IsZero() {
		spec.Started = time.Now().UTC()
	}
	record, err := migration.Rebuilt(spec,
		fmt.Sprintf("the journal of this migration was lost at %s, and was made anew", m.agent.self.Name))
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
	m.agent.log.Error("a container was left frozen by a migration whose journal is lost: asking the target "+
		"where it runs", "container", spec.Name,
		"migration", spec.ID, "target", spec.Target, "state", one.State)
	m.recoverOne(spec.ID)
	return nil
}
