package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/migration"
)

// adoption is a container of another engine whose connection this node has taken over. It is noted
// until the container leaves by a migration: one of which there is a note, and that its engine has
// no more, was removed by its engine's tools.
type adoption struct {
	Container string     `json:"container"`
	Engine    string     `json:"engine"`
	Address   netip.Addr `json:"address"`
	// while this process lives it is there, whatever its engine tells
	First checkpoint.Identity `json:"first"`
}

// adoptions are these notes, in a file: a container may be removed while the agent does not run.
// They are only needed to give something back, so nothing fails because of a file that cannot be
// read or written.
type adoptions struct {
	path string
	mu   sync.Mutex
	all  []adoption
	// read: the file was. unsaved: it has not what there is now.
	read, unsaved bool
	missing       map[string]time.Time // by container: since when its engine has told of others only
}

func (n *adoptions) list() []adoption {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.load()
	return slices.Clone(n.all)
}

// load reads what an earlier agent has noted. What runs is noted anew anyway.
func (n *adoptions) load() {
	if n.read {
		return
	}
	n.read, n.missing = true, map[string]time.Time{}
	if err := durable.Load(n.path, &n.all); err != nil {
		n.all, n.unsaved = nil, !errors.Is(err, fs.ErrNotExist)
	}
}

// note keeps one.
func (n *adoptions) note(one adoption) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.load()
	if !slices.Contains(n.all, one) {
		n.all, n.unsaved = append(without(n.all, one.Container), one), true
	}
}

// drop forgets a container. Doing nothing is success.
func (n *adoptions) drop(container string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.load()
	delete(n.missing, container)
	if kept := without(n.all, container); len(kept) < len(n.all) {
		n.all, n.unsaved = kept, true
	}
}

func without(all []adoption, container string) []adoption {
	return slices.DeleteFunc(slices.Clone(all),
		func(have adoption) bool { return have.Container == container })
}

// save writes what has changed. What fails is tried again at the next look.
func (n *adoptions) save() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.unsaved {
		return nil
	}
	if err := durable.Save(n.path, n.all); err != nil {
		return fmt.Errorf("containers of other engines: %w", err)
	}
	n.unsaved = false
	return nil
}

// missingFor is how long a container has to be missing in all looks, two at least: files that are
// replaced are not there for a moment.
const missingFor = 2 * adoptEvery

// missed notes whether a container is missing, and tells whether it is for long enough to be no more.
func (n *adoptions) missed(container string, missing bool, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	since, known := n.missing[container]
	switch {
	case !missing:
		delete(n.missing, container)
	case !known:
		n.missing[container] = now
	default:
		return now.Sub(since) >= missingFor
	}
	return false
}

// removed are the containers that were adopted here and that their engine has no more, of those
// engines that answer. One that leaves while the engines are asked is not noted any more
// afterwards, one that comes was not before.
func (a *Agent) removed(ctx context.Context, now time.Time) []adoption {
	noted := a.adoptions.list()
	if len(noted) == 0 {
		return nil
	}
	var gone []adoption
	for _, one := range a.routed {
		found, err := one.List(ctx)
		for _, have := range noted {
			if have.Engine != one.Name() {
				continue
			}
			is := func(c engine.Container) bool { return c.Definition.ID == have.Container }
			missing := err == nil && !slices.ContainsFunc(found, is) && !have.First.Alive() &&
				!a.moves.moving(have.Container)
			if a.adoptions.missed(have.Container, missing, now) {
				gone = append(gone, have)
			}
		}
	}
	noted = a.adoptions.list()
	return slices.DeleteFunc(gone, func(one adoption) bool {
		return !slices.Contains(noted, one) ||
			a.moves.moving(one.Container)
	})
}

// forgetRemoved gives back what containers had here that were removed by their engine's tools:
// their connections, and their addresses.
func (a *Agent) forgetRemoved(ctx context.Context) error {
	var err error
	for _, one := range a.removed(ctx, time.Now()) {
		if failed := a.forgetAdopted(one); failed != nil {
			err = errors.Join(err, fmt.Errorf("container %.12s was removed: %w", one.Container, failed))
		}
	}
	return errors.Join(err, a.adoptions.save())
}

func (a *Agent) forgetAdopted(one adoption) error {
	if a.moves.left(one.Container) || a.locations.elsewhere(one.Address, one.Container) {
		a.adoptions.drop(one.Container) // with its address
		return nil
	}
	if err := a.network.Detach(one.Container); err != nil {
		return err
	}
	a.tellRemoved(one.Container)
	release := func() error { return a.network.ReleaseLease(one.Container) }
	if !a.atHome(one.Address) {
		release = func() error {
			return a.giveBack(engine.Definition{
				EngineName: one.Engine, ID: one.Container, Network: engine.Network{Address: one.Address},
			})
		}
	}
	if err := release(); err != nil {
		return err
	}
	a.adoptions.drop(one.Container)
	return nil
}

// left tells whether a container is not this node's since it was last moved from or to it.
func (m *moves) left(container string) bool {
	left := false
	for _, move := range m.list() {
		if spec := move.tracker.Spec; spec.Container == container && move.ended() {
			left = (spec.Side == migration.Source) == (move.record().Result == migration.Moved)
		}
	}
	return left
}
