package embedded

import (
	"errors"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// The note that a container leaves is in two places. The note in the state directory survives a reboot. The
// note in the run directory is the only one that v0.1.0 writes, reads and removes. While the machine is up,
// the latter decides: v0.1.0 may have ended the migration of the durable note, and begun another one.

// leavingOf returns why a container leaves; nil: it does not.
func leavingOf(files container) (*engine.Leave, error) {
	departed, err := loadDeparture(files)
	if err == nil {
		return &departed.Leave, nil
	}
	var halted haltRecord
	if errors.Is(err, fs.ErrNotExist) {
		err = durable.Load(files.halted(), &halted)
	}
	switch {
	case err == nil:
		return &halted.Leave, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	}
	return nil, err
}

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
