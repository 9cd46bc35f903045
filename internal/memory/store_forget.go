package memory

import (
	"errors"
	"fmt"
)

// Forget drops all pages of a task and frees their memory.
func (s *Store) Forget(task Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return errSealed
	}
	var errs []error
	if object := s.shared[task]; object != nil {
		for _, one := range s.tasks[task] {
			s.used -= int64(one.have.count()*PageSize()) + slotCost
		}
		delete(s.tasks, task)
		delete(s.shared, task)
		return object.file.Close()
	}
	for _, one := range s.tasks[task] {
		one.zero = mask{}
		if one.counted() > 0 {
			errs = append(errs, s.drop(one, 0, slotBytes/PageSize()))
		}
		s.used -= slotCost
	}
	delete(s.tasks, task)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget process %d: %w", task, err)
	}
	return nil
}
