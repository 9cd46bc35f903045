package agent

import (
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal/rebuild"
	"github.com/godwit/godwit/internal/migration"
)

// leave is the engine's note of the migration for which the container leaves, from which a lost journal is
// rebuilt.
func (s *source) leave() engine.Leave {
	spec := s.move.tracker.Spec
	return engine.Leave{
		Migration: spec.ID, Target: spec.Target, Mode: string(spec.Mode), Started: spec.Started,
		Stay:        s.volumes.StayingKeys(),
		Incarnation: s.move.record().Incarnation,
	}
}

// newRebuilder rebuilds the journals of these migrations.
func (m *moves) newRebuilder() *rebuild.Rebuilder {
	a := m.agent
	return rebuild.New(rebuild.Config{
		Node: a.self.Name, Engines: a.engines, Looks: &a.looks, Migrations: rebuiltMoves{m}, Unread: m.unread,
		Resume: a.embedded.ResumeOf, NewID: func() string { return randomHex(8) }, Log: a.log,
	})
}

// rebuiltMoves are migrations whose journals are rebuilt.
type rebuiltMoves struct{ moves *moves }

// Moving implements rebuild.Migrations.
func (r rebuiltMoves) Moving(container string) bool { return r.moves.moving(container) }

// Known implements rebuild.Migrations.
func (r rebuiltMoves) Known(id string) bool {
	r.moves.mu.Lock()
	defer r.moves.mu.Unlock()
	return r.moves.byID[id] != nil || r.moves.unread.Check(id) != nil
}

// Record implements rebuild.Migrations.
func (r rebuiltMoves) Record(id string) *migration.Record { return r.moves.recordOf(id) }

// Write implements rebuild.Migrations.
func (r rebuiltMoves) Write(record migration.Record, of engine.Definition) error {
	return r.moves.journal(record.Spec.ID, of).Write(record)
}

// Recover implements rebuild.Migrations.
func (r rebuiltMoves) Recover(id string) { r.moves.recoverOne(id) }
