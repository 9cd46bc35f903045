package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/kernel"
)

// The note that a container leaves is in two places. The note in the state directory survives a reboot. The
// note in the run directory is the only one that v0.1.0 writes, reads and removes. While the machine is up,
// the latter decides: v0.1.0 may have ended the migration of the durable note, and begun another one.

// loadDeparture reads the note that a container leaves. No note is fs.ErrNotExist.
func loadDeparture(place container) (departureRecord, error) {
	var was departureRecord
	err := durable.Load(place.oldDeparture(), &was)
	if errors.Is(err, fs.ErrNotExist) {
		err = durable.Load(place.departure(), &was)
	}
	return was, err
}

// leaves reports whether there is a note that a container leaves. If that cannot be found out, the
// container counts as leaving.
func leaves(place container) bool {
	return durable.Exists(place.oldDeparture()) || durable.Exists(place.departure())
}

// noteDeparture notes that a container leaves. It writes the note that decides first: a crash between the
// two leaves a container that was not frozen yet.
func (e *Engine) noteDeparture(place container, note departureRecord) error {
	err := durable.Save(place.oldDeparture(), note)
	if err == nil {
		err = e.room.save(place.departure(), note)
	}
	if err != nil {
		return fmt.Errorf("note that it leaves: %w", err)
	}
	return nil
}

// forgetDeparture durably removes the note that a container leaves. A destroyed container has none.
func forgetDeparture(place container) error {
	if err := durable.Remove(place.oldDeparture()); err != nil {
		return err
	}
	err := kernel.RemoveDurable(place.departure())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// keepDeparture makes v0.1.0's note of a departure durable, which a reboot would lose. The caller has
// locked the container.
func (e *Engine) keepDeparture(place container) error {
	var note, kept departureRecord
	err := durable.Load(place.oldDeparture(), &note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if durable.Load(place.departure(), &kept) == nil && reflect.DeepEqual(note, kept) {
		return nil
	}
	return e.room.save(place.departure(), note)
}

// KeepNotes writes notes to disk that could not be written when they were made, and reserves room for the
// next ones. Unwritten notes are lost if the machine goes down before that.
func (e *Engine) KeepNotes() error {
	e.notesMu.Lock()
	pending := e.pending
	e.pending = map[string]bool{}
	e.notesMu.Unlock()
	var failed error
	for id := range pending {
		if err := e.keepNotesOf(id); err != nil {
			e.setPending(id)
			failed = errors.Join(failed, fmt.Errorf("keep the notes of container %.12s: %w", id, err))
		}
	}
	return errors.Join(failed, e.room.keep())
}

func (e *Engine) keepNotesOf(id string) error {
	defer e.lock(id)()
	place := e.paths.of(id)
	if !durable.Exists(place.definition()) { // removed meanwhile
		return nil
	}
	err := e.keepDeparture(place)
	if e.hasStopped(id) {
		err = errors.Join(err, e.noteStopped(place))
	}
	return err
}

func (e *Engine) setPending(id string) {
	e.notesMu.Lock()
	defer e.notesMu.Unlock()
	e.pending[id] = true
}
