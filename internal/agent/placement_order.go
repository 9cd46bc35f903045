package agent

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/placement"
)

// order carries out what a user wants. What still comes from the node from which the container was
// brought is older.
func (s *placements) order(brought *move, p placement.Policy) error {
	if brought == nil {
		return s.set(p)
	}
	brought.policy.Lock()
	defer brought.policy.Unlock()
	if err := s.set(p); err != nil {
		return err
	}
	return brought.notePolicy()
}

// receive takes the policy that comes after a migration, once: a user may have changed it here, or
// ended it, when it comes again because the answer was lost.
func (s *placements) receive(brought *move, p placement.Policy) error {
	brought.policy.Lock()
	defer brought.policy.Unlock()
	if had, err := brought.hadPolicy(); had || err != nil {
		return err
	}
	if err := s.set(p); err != nil {
		return err
	}
	return brought.notePolicy()
}

// policyNote is a file beside a migration's journal. It says that no policy is taken any more that
// comes after that migration.
const policyNote = "policy-taken"

func (m *move) notePath() string {
	return filepath.Join(m.agent.moves.dir(m.tracker.Spec.ID), policyNote)
}

func (m *move) notePolicy() error { return kernel.WriteFileAtomic(m.notePath(), nil, 0o600) }

func (m *move) hadPolicy() (bool, error) {
	_, err := os.Stat(m.notePath())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
