package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// adoption is a container of another engine whose connection this node has taken over. It is noted before that, and until the container
// leaves by a migration: one of which there is a note, and that its engine has no more, was removed by its engine's tools.
type adoption struct {
	Container string     `json:"container"`
	Engine    string     `json:"engine"`
	Address   netip.Addr `json:"address"`
}

// adoptions are these notes, in a file: a container may be removed while the agent does not run.
type adoptions struct {
	path string
	mu   sync.Mutex
}

func (n *adoptions) list() ([]adoption, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.load()
}

func (n *adoptions) load() ([]adoption, error) {
	data, err := os.ReadFile(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []adoption
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("containers of other engines, %s: %w", n.path, err)
	}
	return all, nil
}

// note keeps one; what is noted already costs nothing but a look.
func (n *adoptions) note(one adoption) error {
	return n.change(func(all []adoption) []adoption {
		if slices.Contains(all, one) {
			return all
		}
		return append(without(all, one.Container), one)
	})
}

// drop forgets a container. Doing nothing is success.
func (n *adoptions) drop(container string) error {
	return n.change(func(all []adoption) []adoption { return without(all, container) })
}

func without(all []adoption, container string) []adoption {
	return slices.DeleteFunc(slices.Clone(all), func(have adoption) bool { return have.Container == container })
}

func (n *adoptions) change(how func([]adoption) []adoption) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	was, err := n.load()
	if err != nil {
		return err
	}
	all := how(was)
	if slices.Equal(was, all) {
		return nil
	}
	data, err := json.Marshal(all)
	if err == nil {
		err = kernel.WriteFileAtomic(n.path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("containers of other engines: %w", err)
	}
	return nil
}

// removed are the containers that were adopted here and that their engine has no more, of those engines that answer. One that leaves
// while the engines are asked is not noted any more afterwards, one that comes was not before.
func (a *Agent) removed(ctx context.Context) ([]adoption, error) {
	noted, err := a.adoptions.list()
	if err != nil || len(noted) == 0 {
		return nil, err
	}
	var missing []adoption
	for _, one := range a.routed {
		found, err := one.List(ctx)
		if err != nil {
			continue // it may be there
		}
		for _, have := range noted {
			is := func(c engine.Container) bool { return c.Definition.ID == have.Container }
			if have.Engine == one.Name() && !slices.ContainsFunc(found, is) {
				missing = append(missing, have)
			}
		}
	}
	noted, err = a.adoptions.list()
	return slices.DeleteFunc(missing, func(one adoption) bool {
		return !slices.Contains(noted, one) || a.moves.of(one.Container) != nil
	}), err
}

// forgetRemoved gives back what containers had here that were removed by their engine's tools: their connections, and their addresses.
func (a *Agent) forgetRemoved(ctx context.Context) error {
	gone, err := a.removed(ctx)
	for _, one := range gone {
		if failed := a.forgetAdopted(one); failed != nil {
			err = errors.Join(err, fmt.Errorf("container %.12s was removed: %w", one.Container, failed))
		}
	}
	return err
}

func (a *Agent) forgetAdopted(one adoption) error {
	if err := a.network.Detach(one.Container); err != nil {
		return err
	}
	a.tellRemoved(one.Container)
	release := func() error { return a.network.ReleaseLease(one.Container) }
	if !a.atHome(one.Address) {
		release = func() error {
			return a.giveBack(engine.Definition{ID: one.Container, Network: engine.Network{Address: one.Address}})
		}
	}
	if err := release(); err != nil {
		return err
	}
	return a.adoptions.drop(one.Container)
}
