package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
)

// Memory is a store in memory, for tests: several controllers can open it, and one of them leads.
type Memory struct {
	mu      sync.Mutex
	records map[Key][]byte
	epoch   uint64
	leading chan struct{} // has room for the one leader
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{records: map[Key][]byte{}, leading: make(chan struct{}, 1)}
}

// Campaign implements Store.
func (m *Memory) Campaign(ctx context.Context, _ string) (Term, error) {
	select {
	case m.leading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch++
	return &memoryTerm{of: m, epoch: m.epoch, lost: make(chan struct{})}, nil
}

// Load implements Store.
func (m *Memory) Load(context.Context) ([]Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Record
	for key, value := range m.records {
		all = append(all, Record{key, slices.Clone(value)})
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return all, nil
}

// Commit implements Store.
func (m *Memory) Commit(_ context.Context, term Term, changes ...Change) error {
	if err := Check(changes); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mine, ok := term.(*memoryTerm)
	if !ok || mine.of != m {
		return errors.New("a term of another store")
	}
	if mine.over || mine.epoch != m.epoch {
		return ErrNotLeader
	}
	for _, one := range changes {
		if one.Value == nil {
			delete(m.records, one.Key)
		} else {
			m.records[one.Key] = slices.Clone(one.Value)
		}
	}
	return nil
}

// Close implements Store.
func (m *Memory) Close() error { return nil }

type memoryTerm struct {
	of    *Memory
	epoch uint64
	lost  chan struct{}
	over  bool
}

func (t *memoryTerm) Epoch() uint64         { return t.epoch }
func (t *memoryTerm) Lost() <-chan struct{} { return t.lost }

func (t *memoryTerm) Resign(context.Context) error {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if !t.over {
		t.over = true
		close(t.lost)
		<-t.of.leading
	}
	return nil
}
