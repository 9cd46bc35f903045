package agent

import (
	"fmt"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/engine"
)

// reservations keep names, addresses, ids and memory of containers that are about to come, so that no two come at once
// and all have room.
type reservations struct {
	mu    sync.Mutex
	taken map[string]engine.Definition // by what reserves them: a migration, or a container that is being made
	bytes map[string]int64             // of memory that is still to be filled, by migration
}

func newReservations() *reservations {
	return &reservations{taken: map[string]engine.Definition{}, bytes: map[string]int64{}}
}

func (r *reservations) take(by string, definition engine.Definition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, have := range r.taken {
		if other == by {
			continue
		}
		switch {
		case engine.Label(have) == engine.Label(definition):
			return fmt.Errorf("%w: %s: a container of this name is just coming", engine.ErrNameTaken, definition.Name)
		case have.ID == definition.ID:
			return fmt.Errorf("%w: container %.12s is already coming, by migration %s", engine.ErrBusy, definition.ID, other)
		case definition.Network.Address.IsValid() && have.Network.Address == definition.Network.Address:
			return fmt.Errorf("%w: address %s is of a container that is just coming", engine.ErrBusy, definition.Network.Address)
		}
	}
	r.taken[by] = definition
	return nil
}

func (r *reservations) release(by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taken, by)
	delete(r.bytes, by)
}

// fill notes how much memory a migration will need here.
func (r *reservations) fill(by string, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes[by] = bytes
}

// promised is the memory that other migrations will need here, some of which may be in use already.
func (r *reservations) promised(except ...string) (bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for by, have := range r.bytes {
		if !slices.Contains(except, by) {
			bytes += have
		}
	}
	return bytes
}
