package reserve

import (
	"fmt"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/engine"
)

// Reservations hold names, addresses, ids and memory of containers that are about to arrive, so that no two
// conflict and all have room.
type Reservations struct {
	mu sync.Mutex
	// by the owner of the reservation: a migration, or a container that is being created
	taken map[string]engine.Definition
	bytes map[string]promise // of memory that is still to be filled, by migration
	// free is the memory that was free when a node's first container that is still on its way was admitted.
	free   map[string]int64
	orders uint64 // number of promises so far
}

// promise is memory for a container that comes from a node.
type promise struct {
	node  string
	bytes int64
	order uint64 // of all promises
}

// New returns an empty set of reservations.
func New() *Reservations {
	return &Reservations{taken: map[string]engine.Definition{}, bytes: map[string]promise{},
		free: map[string]int64{}}
}

// Take reserves everything that a container cannot share.
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

// Release gives back all reservations of an owner.
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

// forgetFree drops the free memory of a node without promises. The caller has locked mu.
func (r *Reservations) forgetFree(node string) {
	for _, have := range r.bytes {
		if have.node == node && have.bytes > 0 {
			return
		}
	}
	delete(r.free, node)
}

// PromisedTo returns the memory that a node's containers and staged copies will need here, of those that
// came before one and without its own, and how much was free before the first of them. If one has no
// promise yet, all others came before it.
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

// Promised returns the memory that other migrations will need here, some of which may be in use already.
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
