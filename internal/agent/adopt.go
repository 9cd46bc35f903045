package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/patience"
)

// adoptEvery is how often the containers of other engines are looked at: they start and end without
// telling the agent.
const adoptEvery = 3 * time.Second

// adoptForEver gives containers of other engines that have an address of the pool the network that
// those of this node have, and follows those on bridges of their engines that have moved. Whatever
// asks an engine is a look of its own.
func (a *Agent) adoptForEver(ctx context.Context) {
	// by id, so that a lasting error is told once
	told, toldOfRouted := map[string]string{}, map[string]string{}
	for {
		began := time.Now()
		a.looks.look("containers with addresses", a.guarded(func() {
			a.tellOnce(toldOfRouted, "containers that no longer exist", a.forgetRemoved(ctx))
			a.adoptAll(ctx, toldOfRouted)
		}))
		a.tellOnce(told, "networks of engines", errors.Join(a.followRouted(ctx), a.network.KeepPassing()))
		a.tellOnce(told, "overlay between nodes", a.network.KeepOverlay())
		a.followBridged(ctx)
		a.adopted.took.Store(int64(time.Since(began)))
		select {
		case <-ctx.Done():
			return
		case <-time.After(adoptEvery):
		case <-a.adopted.soon:
		}
	}
}

func (a *Agent) adoptAll(ctx context.Context, told map[string]string) {
	var containers []engine.Container
	for _, one := range a.routed {
		found, err := one.List(ctx)
		if err != nil {
			return // who asks for it is told
		}
		containers = append(containers, found...)
	}
	for _, one := range containers {
		if !adoptable(one.Definition) || a.moves.moving(one.Definition.ID) {
			continue
		}
		err := a.followEngine(ctx, one)
		text := fmt.Sprint(err)
		if err != nil && told[one.Definition.ID] != text && ctx.Err() == nil {
			a.log.Warn("container is not connected", "container", engine.Label(one.Definition), "error", err)
		}
		told[one.Definition.ID] = text
	}
}

// tellOnce logs an error, unless it is what was told last.
func (a *Agent) tellOnce(told map[string]string, what string, err error) {
	text := fmt.Sprint(err)
	if err != nil && told[what] != text && a.ctx.Err() == nil {
		a.log.Warn(what, "error", err)
	}
	told[what] = text
}

// adoptable tells whether another engine has made a container's connection, and it is to be ours.
func adoptable(definition engine.Definition) bool {
	return definition.EngineName != "" && definition.Network.Pooled()
}

// followEngine makes the network what a container of another engine needs now.
func (a *Agent) followEngine(ctx context.Context, one engine.Container) error {
	switch one.State {
	case engine.Running:
		return a.adopt(ctx, one)
	case engine.Exited:
		return a.network.Detach(one.Definition.ID) // when it starts again it has another namespace
	case engine.Created, engine.Frozen, engine.Arriving, engine.Damaged:
	}
	return nil
}

// adopt takes over the connection of a running container of another engine, until it ends.
func (a *Agent) adopt(ctx context.Context, one engine.Container) error {
	if err := a.takeOver(ctx, one); err != nil {
		return err
	}
	a.noteAdopted(ctx, one)
	a.adopted.mu.Lock()
	defer a.adopted.mu.Unlock()
	if a.adopted.first[one.Definition.ID] == one.PID {
		return nil
	}
	pidfd, err := kernel.PidfdOpen(one.PID)
	if err != nil {
		return nil // it has just ended, which is seen the next time
	}
	a.adopted.first[one.Definition.ID] = one.PID
	go a.guarded(func() { a.awaitEnd(one, pidfd) })()
	return nil
}

// noteAdopted notes a container whose connection was taken over, if it runs here now: it may have
// left since its engine was asked.
func (a *Agent) noteAdopted(ctx context.Context, one engine.Container) {
	id, address := one.Definition.ID, one.Definition.Network.Address
	first, err := checkpoint.Identify(one.PID)
	if err != nil {
		return
	}
	note := adoption{Container: id, Engine: one.Definition.EngineName, Address: address, First: first}
	if slices.Contains(a.adoptions.list(), note) {
		return
	}
	now, err := a.engines.Inspect(ctx, id)
	if err != nil || now.State != engine.Running || now.PID != one.PID || a.moves.moving(id) {
		return
	}
	a.locations.released(address) // where it was before
	a.adoptions.note(note)
}

// takeOver makes the connection of a running container of another engine ours.
func (a *Agent) takeOver(ctx context.Context, one engine.Container) error {
	own := one.Definition.Network
	return a.network.Adopt(ctx, one.Definition.ID, fmt.Sprintf("/proc/%d/ns/net", one.PID), network.Address{
		IP: own.Address, MAC: own.MAC, MTU: min(own.MTU, a.network.MTU()),
	})
}

// adopted are the first processes of containers whose end is waited for.
type adopted struct {
	mu    sync.Mutex
	first map[string]int
	soon  chan struct{} // something has moved: its end here is to be seen at once, too
	took  atomic.Int64  // how long it took to look at all of them, a time.Duration
}

func newAdopted() adopted { return adopted{first: map[string]int{}, soon: make(chan struct{}, 1)} }

// watchPause is how long nobody looks again because of what an engine tells, at least: it may start
// and end many containers.
const watchPause = 300 * time.Millisecond

// pauseAfter is that for a look that took so long: it asks engines that have other things to do
// about all containers.
func pauseAfter(took time.Duration) time.Duration { return min(max(watchPause, 10*took), adoptEvery) }

// watchContainers has all containers looked at as soon as an engine tells that one of its own has begun
// or ended, which may have the address of one that has left. What it does not tell, or while it cannot,
// is seen when all are looked at anyway.
func (a *Agent) watchContainers(ctx context.Context) {
	for ctx.Err() == nil {
		_ = a.watched.Watch(ctx, func() { a.locations.setWatching(true) }, func() {
			a.containersChanged(a.watched)
			a.adopted.look()
			_ = patience.Until(ctx, time.Now().Add(pauseAfter(time.Duration(a.adopted.took.Load()))))
		})
		a.locations.setWatching(false)
		_ = patience.Until(ctx, time.Now().Add(adoptEvery))
	}
}

// look has all containers looked at now.
func (a *adopted) look() {
	select {
	case a.soon <- struct{}{}:
	default: // that is about to happen
	}
}

// awaitEnd waits for the end of a container and lets go of its connection at once: its engine may
// start it again, and makes another.
func (a *Agent) awaitEnd(one engine.Container, pidfd *os.File) {
	id := one.Definition.ID
	err := errors.Join(kernel.PidfdWait(a.ctx, pidfd), pidfd.Close())
	a.adopted.mu.Lock()
	delete(a.adopted.first, id)
	a.adopted.mu.Unlock()
	if err == nil {
		err = a.awaitMove(id)
	}
	if err == nil && a.endedHere(one) {
		err = a.network.Detach(id)
	}
	if err != nil && a.ctx.Err() == nil {
		a.log.Warn("connection of a container that has ended", "container", engine.Label(one.Definition),
			"error", err)
	}
}

// awaitMove waits until nothing moves a container. One that has just come may end while its
// migration is still cleaned up.
func (a *Agent) awaitMove(id string) error {
	for a.moves.moving(id) {
		if err := patience.Until(a.ctx, time.Now().Add(moveEvery)); err != nil {
			return err
		}
	}
	return nil
}

// moveEvery is how often that is looked at.
const moveEvery = 10 * time.Millisecond

// endedHere tells whether a container of which the first process has ended is still this node's,
// and was not started anew. Its engine may still be busy with its end.
func (a *Agent) endedHere(one engine.Container) bool {
	now, err := a.engines.Inspect(a.ctx, one.Definition.ID)
	over := now.State == engine.Exited || now.State == engine.Damaged || now.State == engine.Running &&
		now.PID == one.PID
	return err == nil && over
}

// connected is a container as it is when its connection is ours.
func (a *Agent) connected(ctx context.Context, one engine.Container) (engine.Container, error) {
	if one.State != engine.Running || !adoptable(one.Definition) || a.moves.moving(one.Definition.ID) {
		return one, nil
	}
	if err := a.adopt(ctx, one); err != nil {
		return one, err
	}
	return a.engines.Inspect(ctx, one.Definition.ID)
}
