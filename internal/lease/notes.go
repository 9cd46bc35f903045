package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/kernel"
)

// release is an address that is to be given back: its container is no more, or was never made.
type release struct {
	Address   netip.Addr `json:"address,omitzero"` // zero: of this node, found by the container
	Container string     `json:"container"`
}

// notes are the releases that are still to be made, in a file.
type notes struct {
	path string
	mu   sync.Mutex
}

func (n *notes) list() ([]release, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.load()
}

func (n *notes) load() ([]release, error) {
	var all []release
	if err := durable.Load(n.path, &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("addresses to give back: %w", err)
	}
	return all, nil
}

// change replaces what is to be done for a container; nil: nothing.
func (n *notes) change(container string, todo *release) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.load()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(have release) bool { return have.Container == container })
	if todo != nil {
		all = append(all, *todo)
	}
	if err := n.save(all); err != nil {
		return fmt.Errorf("addresses to give back: %w", err)
	}
	return nil
}

func (n *notes) save(all []release) error {
	if len(all) == 0 {
		return kernel.RemoveDurable(n.path)
	}
	return durable.Save(n.path, all)
}
