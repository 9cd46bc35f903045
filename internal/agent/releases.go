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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// release is an address that is to be given back: its container is no more, or was never made.
type release struct {
	Address   netip.Addr `json:"address,omitzero"` // zero: of this node, found by the container
	Container string     `json:"container"`
}

// releases are the addresses that are still to be given back, in a file: the node whose they are
// may be down just now, and so may this agent be before a container is made for which it has taken
// one.
type releases struct {
	path string
	mu   sync.Mutex

	again sync.Map // containers whose release is about to be retried
}

func (r *releases) list() ([]release, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.load()
}

func (r *releases) load() ([]release, error) {
	var all []release
	if err := durable.Load(r.path, &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("addresses to give back: %w", err)
	}
	return all, nil
}

// change replaces what is to be done for a container; nil: nothing.
func (r *releases) change(container string, todo *release) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := r.load()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(have release) bool { return have.Container == container })
	if todo != nil {
		all = append(all, *todo)
	}
	if err := r.save(all); err != nil {
		return fmt.Errorf("addresses to give back: %w", err)
	}
	return nil
}

func (r *releases) save(all []release) error {
	if len(all) == 0 {
		return kernel.RemoveDurable(r.path)
	}
	return durable.Save(r.path, all)
}

// giveBack tells the home node of an address that its container is gone, now or when that node is back.
func (a *Agent) giveBack(definition engine.Definition) error {
	todo := release{Address: definition.Network.Address, Container: definition.ID}
	if err := a.releases.change(todo.Container, &todo); err != nil {
		return err
	}
	go a.guarded(func() {
		// Greetings must stop naming the container before the home node forgets the address.
		a.lists.Changed(a.engines.EngineFor(definition))
		a.releaseOne(todo)
	})()
	return nil
}

// repeatReleases gives back at a node what could not be given back before.
func (a *Agent) repeatReleases(node string) {
	all, err := a.releases.list()
	if err != nil {
		a.log.Warn("addresses are not given back", "error", err)
	}
	for _, todo := range all {
		if name, known := a.homeOf(todo.Address); known && name == node {
			a.releaseOne(todo)
		}
	}
}

func (a *Agent) homeOf(address netip.Addr) (name string, known bool) {
	number, err := a.network.Home(address)
	if err != nil {
		return "", false
	}
	return a.peers.ByNumber(number)
}

func (a *Agent) releaseOne(todo release) {
	err := a.callRelease(todo)
	switch status.Code(err) {
	// what that node refuses it will refuse again
	case codes.OK, codes.InvalidArgument, codes.PermissionDenied:
		err = errors.Join(err, a.releases.change(todo.Container, nil))
	case codes.FailedPrecondition:
		a.releaseAgain(todo)
		a.log.Debug("address not given back yet; the agent tries "+
			"again", "address", todo.Address, "error", err)
		return
	}
	if err != nil {
		a.log.Info("address not given back", "address", todo.Address, "error", err)
	}
}

// releaseAgain retries after the next hello. The address's home node believes that another node has
// the container, until that node no longer tells of it.
func (a *Agent) releaseAgain(todo release) {
	if _, soon := a.releases.again.LoadOrStore(todo.Container, true); soon {
		return
	}
	time.AfterFunc(cluster.HelloEvery, a.guarded(func() {
		a.releases.again.Delete(todo.Container)
		if a.ctx.Err() == nil {
			a.releaseOne(todo)
		}
	}))
}

func (a *Agent) callRelease(todo release) error {
	name, known := a.homeOf(todo.Address)
	if !known {
		return fmt.Errorf("the node of %s is not known", todo.Address)
	}
	node, err := a.peers.Find(name)
	if err != nil {
		return err
	}
	client, err := a.peers.Client(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.config.peerTimeout())
	defer cancel()
	_, err = api.NewPeerClient(client).Release(ctx,
		&api.ReleaseRequest{Address: todo.Address.String(), Container: todo.Container})
	return err
}

// unlease takes the addresses back of containers that an earlier agent did not come to make. Only the
// node's own engine makes containers for such notes, and only that engine is asked: another one may hang,
// and the agent does not serve yet.
func (a *Agent) unlease(ctx context.Context) {
	all, err := a.releases.list()
	for _, todo := range all {
		if !todo.Address.IsValid() {
			err = errors.Join(err, a.unleaseOne(ctx, todo.Container))
		}
	}
	if err != nil {
		a.log.Warn("cannot take back the addresses of containers that were never made", "error", err)
	}
}

func (a *Agent) unleaseOne(ctx context.Context, container string) error {
	_, err := a.embedded.Inspect(ctx, container)
	if errors.Is(err, engine.ErrNotFound) {
		err = a.network.ReleaseLease(container)
	}
	if err != nil {
		return err
	}
	return a.releases.change(container, nil)
}

// made notes that there is a container for the address that was taken for it, or that it was given
// back. A note that stays does no harm: the next agent looks whether there is one.
func (a *Agent) made(container string) {
	if err := a.releases.change(container, nil); err != nil {
		a.log.Warn("cannot remove the note of a container that was being made", "error", err)
	}
}
