package reserve

import (
	"fmt"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/engine"
)

// Reservations keep names, addresses, ids and memory of containers that are about to come, so that
// no two come at once and all have room.
type Reservations struct {
	mu sync.Mutex
	// by what reserves them: a migration, or a container that is being made
	taken map[string]engine.Definition
	bytes map[string]promise // of memory that is still to be filled, by migration
	// free is the memory that was free when each node's first container that is still on its way was let in.
	free   map[string]int64
	orders uint64 // that promises have so far
}

// promise is memory for a container that comes from a node.
type promise struct {
	node  string
	bytes int64
	order uint64 // of all promises
}

// New has reserved nothing yet.
func New() *Reservations {
	return &Reservations{taken: map[string]engine.Definition{}, bytes: map[string]promise{},
		free: map[string]int64{}}
}

// Take reserves what a container has to have alone.
func (r *Reservations) Take(by string, definition engine.Definition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, have := range r.taken {
		if other == by {
			continue
		}
		switch {
		case engine.Label(have) == engine.Label(definition):
			return fmt.Errorf("%w: %s: a container of this name is already arriving",
				engine.ErrNameTaken, definition.Name)
		case have.ID == definition.ID:
			return fmt.Errorf("%w: container %.12s is already arriving, by migration %s",
				engine.ErrBusy, definition.ID, other)
		case definition.Network.Address.IsValid() && have.Network.Address == definition.Network.Address:
			return fmt.Errorf("%w: a container with address %s is already arriving",
				engine.ErrBusy, definition.Network.Address)
		}
	}
	r.taken[by] = definition
	return nil
}

// Release gives all back that something has reserved.
func (r *Reservations) Release(by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taken, by)
	had := r.bytes[by].node
	delete(r.bytes, by)
	r.forgetFree(had)
}

// Fill notes how much memory the container of a node will need here, and how much is free now.
func (r *Reservations) Fill(by, node string, bytes, free int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.free[node]; !has {
		r.free[node] = free
	}
	order := r.bytes[by].order
	if order == 0 {
		r.orders++
		order = r.orders
	}
	r.bytes[by] = promise{node, bytes, order}
	r.forgetFree(node)
}

// forgetFree forgets what was free when nothing is promised to a node any more. The caller has locked mu.
func (r *Reservations) forgetFree(node string) {
	for _, have := range r.bytes {
		if have.node == node && have.bytes > 0 {
			return
		}
	}
	delete(r.free, node)
}

// PromisedTo is the memory that containers and staged copies of a node will need here that came
// before one, but for its own, and what was free before the first of them. If nothing is promised
// to the one yet, all came before it.
func (r *Reservations) PromisedTo(node, one string, own ...string) (bytes, free int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	its, has := r.bytes[one]
	for by, have := range r.bytes {
		if have.node == node && by != one && !slices.Contains(own, by) && (!has || have.order < its.order) {
			bytes += have.bytes
		}
	}
	return bytes, r.free[node]
}

// Promised is the memory that other migrations will need here, some of which may be in use already.
func (r *Reservations) Promised(except ...string) (bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for by, have := range r.bytes {
		if !slices.Contains(except, by) {
			bytes += have.bytes
		}
	}
	return bytes
}
