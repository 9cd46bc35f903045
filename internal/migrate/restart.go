package migrate

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

// restarting is the way of a migration back to its journal.
type restarting struct{ *Move }

// fromJournal does what a crash and a restart of the agent would do: a journal that cannot
// be written, or a panic, must not let the machine run ahead of what is durable and done. The
// machine that ran ahead hears of nothing any more.
func (m restarting) fromJournal(cause error) {
	m.all.config.Log.Error("the migration goes on from its journal", "migration", m.Tracker.Spec.ID, "error",
		cause)
	m.life++
	m.halted = true
	steps := maps.Clone(m.running)
	for _, step := range steps {
		step.cancel(cause)
	}
	go guard.Logged(m.all.config.Log, func() {
		for _, step := range steps {
			<-step.ended
		}
		for told := false; m.rest(); told = true {
			err := m.resume(cause)
			if err == nil {
				return
			}
			if !told {
				m.all.config.Log.Error("journal cannot be used; it is tried again", "migration",
					m.Tracker.Spec.ID, "error", err)
			}
		}
	})()
}

// rest waits for a tick; false: the agent ends.
func (m restarting) rest() bool {
	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.all.ctx.Done():
		return false
	}
}

// resume goes on from what is durable. After an error it stands still, and can be tried again: the
// disk may come back.
func (m restarting) resume(cause error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	record, err := m.Journal.Read()
	if errors.Is(err, journal.ErrNone) {
		m.neverBegan(cause)
		return nil
	}
	if err != nil {
		return err
	}
	machine, actions, err := migration.Resume(record)
	if err != nil {
		return err
	}
	m.machine, m.halted = machine, false
	m.execute(actions)
	return nil
}

// neverBegan ends a migration of which nothing could be journaled, so that no step of it was begun.
func (m restarting) neverBegan(cause error) {
	reason := fmt.Sprintf("%s has no journal of the migration: %v", m.all.config.Node, cause)
	if m.Tracker.Spec.Side == migration.Target {
		m.Work().Send(migration.Message{Kind: migration.KindNeverRan, Error: reason})
	}
	m.finish(migration.Finish{Result: migration.RolledBack, Error: reason})
}

// Rebooted reports whether the machine was booted since the migration began.
func (m *Move) Rebooted() bool { return m.Journal.Boot != m.all.config.Boot }
