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

// A source that has lost its journal has a container that is frozen, and nobody who is in charge of it. What its engine has noted of
// the departure says which migration that was, and to which node: from that the journal is made anew, in doubt, and the migration
// goes on as after a crash. It asks the target, and destroys or thaws the copy by its answer.

// rebuildEvery is the pace at which containers are looked for whose journals are lost.
const rebuildEvery = 30 * time.Second

// unknownTarget stands for the node to which a container was leaving if nobody has noted it: it cannot be asked.
const unknownTarget = "unknown-node"

// leave is what the engine notes of why the container leaves.
func (s *source) leave() engine.Leave {
	spec := s.move.tracker.spec
	return engine.Leave{
		Migration: spec.ID, Target: spec.Target, Mode: string(spec.Mode), Started: spec.Started, Stay: s.stay(),
		Incarnation: s.move.record().Incarnation,
	}
}

// rebuild makes the journals of containers anew that leave and whose migrations are not known.
func (m *moves) rebuild(ctx context.Context) {
	containers, err := m.agent.engines.ListAnswered(ctx)
	if err != nil {
		m.agent.log.Warn("containers that have lost their journals are not looked for", "error", err)
		return
	}
	for _, one := range containers {
		if one.Leaving == nil || !m.lost(one) {
			continue
		}
		if err := m.rebuildOne(ctx, one.Definition); err != nil {
			m.agent.log.Error("container is left frozen, and its migration cannot be found out; it is tried again", "container", one.Definition.Name,
				"error", err)
		}
	}
}

// lost tells whether nobody is in charge of a container that leaves.
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

// rebuildOne makes the journal of one container anew, and goes on with its migration. The engine is asked again first: since it was
// listed the migration may have begun, or ended.
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
	m.agent.log.Error("a container was left by a migration whose journal is lost: asking where it runs", "container", spec.Name,
		"migration", spec.ID, "target", spec.Target, "state", one.State)
	m.recoverOne(spec.ID)
	return nil
}
