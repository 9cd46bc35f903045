package agent

import (
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
)

// logPanic writes the stack of a panic that a migration has failed by.
func (a *Agent) logPanic(err error) { guard.LogPanic(a.log, err) }

// guarded is do for a goroutine of its own, which nobody waits for: a panic is logged.
func (a *Agent) guarded(do func()) func() { return guard.Logged(a.log, do) }

// broken is told of a panic beside a migration, which breaks the migration off, as the loss of the peer does.
func (a *Agent) broken(m *migrate.Move) func(err error) {
	return func(err error) {
		a.logPanic(err)
		m.Happen(migration.PeerLost{Error: err.Error()})
	}
}
