package attachment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/patience"
)

// AdopterConfig is the configuration of an Adopter.
type AdopterConfig struct {
	Path      string // of the file with the notes
	Engines   *engine.Set
	Routed    []engine.Engine // those whose containers have addresses of the pool
	Network   Adoptive
	Leases    Leases
	Locations Locations
	Moves     Moves
	// Removed lets other nodes give up what they keep in case that a container comes back.
	Removed func(container string)
	Log     *slog.Logger
}

// Adoptive is a network that takes over attachments. See network.Network.
type Adoptive interface {
	Adopt(ctx context.Context, container, netns string, address network.Address) error
	Detach(container string) error
	ReleaseLease(container string) error
	MTU() int
}

// Leases are the addresses of the pool. See lease.Leases.
type Leases interface {
	AtHome(address netip.Addr) bool
	GiveBack(definition engine.Definition) error
}

// Locations are where containers are. See location.Locations.
type Locations interface {
	Elsewhere(address netip.Addr, container string) bool
	Released(address netip.Addr)
}

// Adopter gives containers of other engines that have an address of the pool the network that those of this
// node have.
type Adopter struct {
	ctx    context.Context //nolint:containedctx // The life of the node: the end of a container is awaited.
	config AdopterConfig
	notes  notes

	mu    sync.Mutex
	first map[string]int // the first processes of containers whose end is waited for
}

// NewAdopter has adopted none yet. ctx is the life of the node.
func NewAdopter(ctx context.Context, config AdopterConfig) *Adopter {
	return &Adopter{ctx: ctx, config: config, notes: notes{path: config.Path}, first: map[string]int{}}
}

// Drop forgets a container that has left by a migration: its address is not given back.
func (a *Adopter) Drop(container string) { a.notes.drop(container) }

// all gives those containers their network. told has the errors that were told, by container.
func (a *Adopter) all(ctx context.Context, told inventory.Told) {
	var containers []engine.Container
	for _, one := range a.config.Routed {
		found, err := one.List(ctx)
		if err != nil {
			return // who asks for it is told
		}
		containers = append(containers, found...)
	}
	for _, one := range containers {
		if !adoptable(one.Definition) || a.config.Moves.Moving(one.Definition.ID) {
			continue
		}
		err := a.followEngine(ctx, one)
		if told.News(one.Definition.ID, err) && ctx.Err() == nil {
			a.config.Log.Warn("container is not connected", "container", engine.Label(one.Definition),
				"error", err)
		}
	}
}

// adoptable reports whether another engine made a container's attachment, with an address of the pool.
func adoptable(definition engine.Definition) bool {
	return definition.EngineName != "" && definition.Network.Pooled()
}

// followEngine makes the network what a container of another engine needs now.
func (a *Adopter) followEngine(ctx context.Context, one engine.Container) error {
	switch one.State {
	case engine.Running:
		return a.adopt(ctx, one)
	case engine.Exited:
		return a.config.Network.Detach(one.Definition.ID) // when it starts again it has another namespace
	case engine.Created, engine.Frozen, engine.Arriving, engine.Damaged:
	}
	return nil
}

// adopt takes over the attachment of a running container of another engine, until the container ends.
func (a *Adopter) adopt(ctx context.Context, one engine.Container) error {
	if err := a.takeOver(ctx, one); err != nil {
		return err
	}
	a.noteAdopted(ctx, one)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first[one.Definition.ID] == one.PID {
		return nil
	}
	pidfd, err := kernel.PidfdOpen(one.PID)
	if err != nil {
		return nil // it has just ended, which is seen the next time
	}
	a.first[one.Definition.ID] = one.PID
	go guard.Logged(a.config.Log, func() { a.awaitEnd(one, pidfd) })()
	return nil
}

// netnsOf is the network namespace of a process.
func netnsOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// noteAdopted records a container whose attachment was taken over, if the container runs here now: it may
// have left since its engine was asked.
func (a *Adopter) noteAdopted(ctx context.Context, one engine.Container) {
	id, address := one.Definition.ID, one.Definition.Network.Address
	first, err := checkpoint.Identify(one.PID)
	if err != nil {
		return
	}
	note := adoption{Container: id, Engine: one.Definition.EngineName, Address: address, First: first}
	if slices.Contains(a.notes.list(), note) {
		return
	}
	now, err := a.config.Engines.Inspect(ctx, id)
	if err != nil || now.State != engine.Running || now.PID != one.PID || a.config.Moves.Moving(id) {
		return
	}
	a.config.Locations.Released(address) // where it was before
	a.notes.note(note)
}

// takeOver takes over the attachment of a running container of another engine.
func (a *Adopter) takeOver(ctx context.Context, one engine.Container) error {
	own := one.Definition.Network
	return a.config.Network.Adopt(ctx, one.Definition.ID, netnsOf(one.PID), network.Address{
		IP: own.Address, MAC: own.MAC, MTU: min(own.MTU, a.config.Network.MTU()),
	})
}

// awaitEnd waits for the end of a container and drops its attachment at once: its engine may start the
// container again with another one.
func (a *Adopter) awaitEnd(one engine.Container, pidfd *os.File) {
	id := one.Definition.ID
	err := errors.Join(kernel.PidfdWait(a.ctx, pidfd), pidfd.Close())
	a.mu.Lock()
	delete(a.first, id)
	a.mu.Unlock()
	if err == nil {
		err = a.awaitMove(id)
	}
	if err == nil && a.endedHere(one) {
		err = a.config.Network.Detach(id)
	}
	if err != nil && a.ctx.Err() == nil {
		a.config.Log.Warn("connection of a container that has ended", "container",
			engine.Label(one.Definition), "error", err)
	}
}

// awaitMove waits until no migration moves a container. A container that has just arrived may end while its
// migration is still being cleaned up.
func (a *Adopter) awaitMove(id string) error {
	for a.config.Moves.Moving(id) {
		if err := patience.Until(a.ctx, time.Now().Add(moveEvery)); err != nil {
			return err
		}
	}
	return nil
}

// moveEvery is how often awaitMove looks.
const moveEvery = 10 * time.Millisecond

// endedHere reports whether a container whose first process has ended is still this node's, and was not
// started again. Its engine may not have noticed the end yet.
func (a *Adopter) endedHere(one engine.Container) bool {
	now, err := a.config.Engines.Inspect(a.ctx, one.Definition.ID)
	over := now.State == engine.Exited || now.State == engine.Damaged || now.State == engine.Running &&
		now.PID == one.PID
	return err == nil && over
}

// Connected returns a container as it is once its attachment was taken over.
func (a *Adopter) Connected(ctx context.Context, one engine.Container) (engine.Container, error) {
	if one.State != engine.Running || !adoptable(one.Definition) || a.config.Moves.Moving(one.Definition.ID) {
		return one, nil
	}
	if err := a.adopt(ctx, one); err != nil {
		return one, err
	}
	return a.config.Engines.Inspect(ctx, one.Definition.ID)
}
