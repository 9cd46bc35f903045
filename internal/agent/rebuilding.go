package agent

import "github.com/godwit/godwit/internal/engine"

// leave is the engine's note of the migration for which the container leaves, from which a lost journal is
// rebuilt.
func (s *source) leave() engine.Leave {
	spec := s.move.Tracker.Spec
	return engine.Leave{
		Migration: spec.ID, Target: spec.Target, Mode: string(spec.Mode), Started: spec.Started,
		Stay:        s.volumes.StayingKeys(),
		Incarnation: s.move.Record().Incarnation,
	}
}
