package agent

import (
	"github.com/godwit/godwit/internal/frozen"
	"github.com/godwit/godwit/internal/migration"
)

// leavingMove is the migration of a source, for the parts of the source.
type leavingMove struct{ *move }

// Record implements frozen.Migration.
func (m leavingMove) Record() migration.Record { return m.record() }

// Rebooted implements frozen.Migration.
func (m leavingMove) Rebooted() bool { return m.journal.boot != m.agent.boot }

// newFrozen makes the frozen copy of the container, which is not frozen yet.
func (s *source) newFrozen() *frozen.Copy {
	return frozen.New(s.agent.ctx, frozen.Config{
		Engines: s.agent.engines, Migration: leavingMove{s.move}, Container: s.definition, ID: s.id(),
		Here: s.agent.self.Name, Target: s.target.Name, Restarts: s.restarts(), Log: s.agent.log,
	})
}
