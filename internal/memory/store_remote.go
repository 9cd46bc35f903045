package memory

import "fmt"

// Remote says which pages come after the restore: they are still at the source. The store drops its content
// of them, and reserves room for them in the image. Keep and Check count them as present, and their memory
// counts against the limit from now on. A page that is put later is no longer remote. Memory that processes
// share cannot be remote: CRIU restores it before they run.
func (s *Store) Remote(maps []TaskMap) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range maps {
		if m.Task == 0 || m.Task > maxTask {
			return fmt.Errorf("%w map of remote pages: task %d is no process", ErrMalformed, m.Task)
		}
		for _, area := range m.Areas {
			if err := s.remote(m.Task, area); err != nil {
				return fmt.Errorf("make room for %d remote pages at %#x of process %d: %w", area.Pages,
					area.Start, m.Task, err)
			}
		}
	}
	return nil
}

func (s *Store) remote(task Task, area Area) error {
	size := uint64(PageSize())
	if area.Start%size != 0 || area.Start >= maxAddress || area.Pages > (maxAddress-area.Start)/size {
		return fmt.Errorf("%w area", ErrMalformed)
	}
	for address, left := area.Start, area.Pages; left > 0; {
		from := address % slotBytes / size
		pages := min(left, slotBytes/size-from)
		one, err := s.find(task, address-address%slotBytes)
		if err == nil {
			err = s.makeRemote(one, int(from), int(from+pages))
		}
		if err != nil {
			return err
		}
		address, left = address+pages*size, left-pages
	}
	return nil
}

// makeRemote keeps the memory of dropped pages, which is needed again soon, because this happens in the
// freeze.
func (s *Store) makeRemote(one *slot, from, to int) error {
	before := *one
	for page := from; page < to; page++ {
		if one.have.has(page) {
			one.had.set(page, page+1, true)
		}
	}
	one.have.set(from, to, false)
	one.zero.set(from, to, false)
	one.remote.set(from, to, true)
	if err := s.take(int64((one.counted() - before.counted()) * PageSize())); err != nil {
		*one = before
		return err
	}
	if one.offset < 0 {
		one.offset = s.size
		s.size += slotBytes
	}
	return nil
}
