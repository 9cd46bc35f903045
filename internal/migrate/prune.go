package migrate

import (
	"fmt"
	"os"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
)

// prune forgets the oldest ended migrations, but none that an operator has decided: the other node
// does not know of that, and may ask at any time. To what has ended otherwise there is a right
// answer for any migration that is not known: see Outcome and Tell.
func (m *Moves) prune() {
	for _, move := range surplus(m.List()) {
		m.mu.Lock()
		delete(m.byID, move.Tracker.Spec.ID)
		m.mu.Unlock()
		if err := os.RemoveAll(m.Dir(move.Tracker.Spec.ID)); err != nil {
			m.config.Log.Warn("cannot remove an old migration", "error", err)
		}
	}
}

// surplus are the migrations to forget, so that keepMoves are left: the oldest of the node with which there
// were most. No node can push out what is known of the others.
func surplus(list []*Move) (forget []*Move) {
	ended := map[string][]*Move{} // by the other node
	for _, move := range list {
		if record := move.Record(); move.Ended() && !record.Resolved && !record.Overruled {
			other := record.Spec.Source
			if record.Spec.Side == migration.Source {
				other = record.Spec.Target
			}
			ended[other] = append(ended[other], move)
		}
	}
	for range len(list) - keepMoves {
		var most []*Move
		of := ""
		for other, moves := range ended {
			if len(moves) > len(most) || len(moves) == len(most) && moves[0].since.Before(most[0].since) {
				most, of = moves, other
			}
		}
		if len(most) == 0 {
			break
		}
		forget = append(forget, most[0])
		if ended[of] = most[1:]; len(ended[of]) == 0 {
			delete(ended, of)
		}
	}
	return forget
}

// ban makes sure that a migration that this node does not know never runs here: an offer of it that
// comes late is refused, also after a restart.
func (m *Moves) ban(id, from string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[id] != nil {
		return fmt.Errorf("%w: migration %s has just begun", engine.ErrBusy, id)
	}
	if err := m.unread.Check(id); err != nil {
		return err
	}
	record, err := migration.Banned(id, from, m.config.Node, time.Now().UTC())
	if err != nil {
		return err
	}
	machine, _, err := migration.Resume(record)
	if err != nil {
		return err
	}
	banned := m.New(engine.Definition{}, machine)
	banned.Take(m.config.On.Work(banned, engine.Definition{}, nil))
	if err := banned.Journal.Write(record); err != nil {
		return err
	}
	banned.remember()
	m.byID[id] = banned
	go guard.Logged(m.config.Log, m.prune)()
	return nil
}
