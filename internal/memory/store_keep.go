package memory

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrPagesMissing is wrapped by errors of Keep: listed pages never came. A restore would find zeros there.
var ErrPagesMissing = errors.New("pages are missing")

// Keep applies the final map: it drops pages that the map does not list, and requires all listed pages to
// be here, as content, as zeros, or as remote pages. After an error the store is useless.
func (s *Store) Keep(maps []TaskMap) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return errSealed
	}
	listed := make(map[Task]bool, len(maps))
	for _, m := range maps {
		listed[m.Task] = true
		if err := s.keepTask(m); err != nil {
			return err
		}
	}
	for task := range s.tasks {
		if !listed[task] {
			s.forget(task)
		}
	}
	return nil
}

// Check requires all listed pages to be here, as content, as zeros, or as remote pages, and changes
// nothing.
func (s *Store) Check(maps []TaskMap) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range maps {
		want, err := s.masks(m)
		if err != nil {
			return err
		}
		for base, wanted := range want {
			if err := s.tasks[m.Task][base].check(wanted); err != nil {
				return fmt.Errorf("process %d, at %#x: %w", m.Task, base, err)
			}
		}
	}
	return nil
}

// keepTask applies the map of one task.
func (s *Store) keepTask(m TaskMap) error {
	want, err := s.masks(m)
	if err != nil {
		return err
	}
	for base, one := range s.tasks[m.Task] {
		had := one.have
		if err := one.keep(want[base]); err != nil {
			return fmt.Errorf("process %d, at %#x: %w", m.Task, base, err)
		}
		if one.object == nil || base+slotBytes > maxObjectBytes {
			continue
		}
		if err := s.punchDropped(one, &had); err != nil {
			return fmt.Errorf("shared memory %d, at %#x: %w", m.Task, base, err)
		}
	}
	return nil
}

// punchDropped makes holes of the pages that a slot has lost: its file is what will be mapped.
func (s *Store) punchDropped(one *slot, had *mask) error {
	for page := range slotBytes / PageSize() {
		if had.has(page) && !one.have.has(page) {
			if err := s.punch(one, page, page+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// masks returns the pages of a map by slot; each slot must exist.
func (s *Store) masks(m TaskMap) (map[uint64]*mask, error) {
	slots := s.tasks[m.Task]
	want := make(map[uint64]*mask, len(slots))
	size := uint64(PageSize())
	for _, area := range m.Areas {
		for address, left := area.Start, area.Pages; left > 0; {
			base := address - address%slotBytes
			from := int(address % slotBytes / size)
			to := int(min(uint64(from)+left, slotBytes/size))
			if slots[base] == nil {
				return nil, fmt.Errorf("%w: process %d has %d at %#x that never came", ErrPagesMissing,
					m.Task, to-from, address)
			}
			wanted := want[base]
			if wanted == nil {
				wanted = &mask{}
				want[base] = wanted
			}
			wanted.set(from, to, true)
			address, left = address+uint64(to-from)*size, left-uint64(to-from)
		}
	}
	return want, nil
}

// check requires pages to be here.
func (s *slot) check(wanted *mask) error {
	for i := range wanted {
		if missing := wanted[i] &^ (s.have[i] | s.zero[i] | s.remote[i]); missing != 0 {
			page := i*maskBits + bits.TrailingZeros64(missing)
			return fmt.Errorf("%w: %d of them, the first is number %d there", ErrPagesMissing,
				bits.OnesCount64(missing), page)
		}
	}
	return nil
}

// keep drops unwanted pages; nil keeps nothing. The memory of single dropped pages is freed together with
// the slot's, because this happens in the freeze.
func (s *slot) keep(wanted *mask) error {
	if wanted == nil {
		wanted = &mask{}
	}
	if err := s.check(wanted); err != nil {
		return err
	}
	for i := range wanted {
		s.have[i] &= wanted[i]
		s.zero[i] &= wanted[i]
		s.remote[i] &= wanted[i]
	}
	return nil
}

func (s *Store) forget(task Task) {
	for _, one := range s.tasks[task] {
		one.have, one.remote = mask{}, mask{}
	}
	delete(s.tasks, task)
	if object := s.shared[task]; object != nil {
		_ = object.file.Close() // it is not needed
		delete(s.shared, task)
	}
}
