package agent

import (
	"cmp"
	"context"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
)

// Hear asks the target what became of the migration. To take back what was handed over, the target
// is first told to end its copy.
func (s *source) Hear(ctx context.Context, state migration.State, runsAt migration.Side) migrate.Said {
	if runsAt == migration.Source && state == migration.Committed {
		if heard, told := migrate.TellNow(ctx, s.control,
			migration.Message{Kind: migration.KindOverruled}); !told {
			return heard
		}
	}
	message, err := s.Ask(ctx, runsAt == migration.Source && state == migration.InDoubt)
	if err != nil {
		return migrate.NoWord(err)
	}
	word, why := s.move.WordOf(message), migrate.BusyWithSteps
	if word == migration.WordUnknown {
		why = cmp.Or(message.Error, "its state directory is not the one that took the container")
	}
	return migrate.Said{Word: word, Message: &message, Why: why}
}

// Alarm is what is wrong with the frozen copy here.
func (s *source) Alarm() string { return s.frozen.Alarm() }

// sourceEnd is the source as its line needs it.
type sourceEnd struct{ *source }

func (e sourceEnd) Offer() *api.Offer { return e.offered }
func (e sourceEnd) Reserved(reservation *api.Reservation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reservation = reservation
}
func (e sourceEnd) Happen(event migration.Event) { e.move.Happen(event) }
func (e sourceEnd) Guarded(do func()) func()     { return e.move.Guarded(do) }
