package controller

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/placement"
)

// order carries out what a user wants. What still comes from the node from which the container was
// brought is older.
func (c *Controller) order(brought *Arrival, p placement.Policy) error {
	if brought == nil {
		return c.set(p)
	}
	brought.Lock.Lock()
	defer brought.Lock.Unlock()
	if err := c.set(p); err != nil {
		return err
	}
	return brought.notePolicy()
}

// receive takes the policy that comes after a migration, once: a user may have changed it here, or
// ended it, when it comes again because the answer was lost.
func (c *Controller) receive(brought *Arrival, p placement.Policy) error {
	brought.Lock.Lock()
	defer brought.Lock.Unlock()
	if had, err := brought.hadPolicy(); had || err != nil {
		return err
	}
	if err := c.set(p); err != nil {
		return err
	}
	return brought.notePolicy()
}

// Arrival is the migration that brought a container to this node.
type Arrival struct {
	Migration, Source string
	Dir               string      // of the migration's journal
	Lock              sync.Locker // the migration's own, held while its container is given a policy
}

// policyNote is a file beside a migration's journal. It says that no policy is taken any more that
// comes after that migration.
const policyNote = "policy-taken"

func (a *Arrival) notePath() string { return filepath.Join(a.Dir, policyNote) }

func (a *Arrival) notePolicy() error { return kernel.WriteFileAtomic(a.notePath(), nil, 0o600) }

func (a *Arrival) hadPolicy() (bool, error) {
	_, err := os.Stat(a.notePath())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
