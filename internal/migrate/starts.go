package migrate

import "github.com/godwit/godwit/internal/engine"

// Starts are the migrations of a node, as those ask who want to start a container.
type Starts struct{ moves *Moves }

// NewStarts returns them.
func NewStarts(moves *Moves) Starts { return Starts{moves} }

// Busy implements restart.Migrations.
func (s Starts) Busy(container string) error {
	if move := s.moves.Of(container); move != nil {
		return move.Busy()
	}
	return nil
}

// Of implements restart.Migrations.
func (s Starts) Of(container string) (id string, neverRuns bool) {
	move := s.moves.Of(container)
	if move == nil {
		return "", false
	}
	return move.Tracker.Spec.ID, move.NeverRuns()
}

// UnreadAmong implements restart.Migrations.
func (s Starts) UnreadAmong(containers ...string) string { return s.moves.unread.Among(containers...) }

// Unusable implements restart.Migrations.
func (s Starts) Unusable(of engine.Container) string { return s.moves.unread.Advice(of) }
