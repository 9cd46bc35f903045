package memory

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Take moves the pages of a store that has no users any more to a residual copy, and closes the store. It
// frees memory as it goes, so that little memory is in use twice. After an error, the pages moved so far
// stay.
func (r *Residual) Take(s *Store) error {
	return errors.Join(r.take(s), s.Close())
}

func (r *Residual) take(s *Store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed || s.file == nil {
		return errSealed
	}
	buffer := make([]byte, slotBytes)
	for _, task := range sortedKeys(s.tasks) {
		for _, address := range sortedKeys(s.tasks[task]) {
			if task.IsObject() && address+slotBytes > maxObjectBytes {
				continue // it describes the object
			}
			if err := r.takeSlot(s, task, address, buffer); err != nil {
				return fmt.Errorf("keep what was at %#x of process %d: %w", address, task, err)
			}
		}
	}
	return nil
}

// takeSlot moves the pages of one slot. The caller holds the store's lock.
func (r *Residual) takeSlot(s *Store, task Task, address uint64, buffer []byte) error {
	one, size := s.tasks[task][address], PageSize()
	for from := 0; from < slotBytes/size; {
		to := from
		for to < slotBytes/size && to-from < MaxRunPages && one.have.has(to) {
			to++
		}
		if to == from {
			from++
			continue
		}
		data := buffer[:(to-from)*size]
		if _, err := s.fileOf(one).ReadAt(data, one.offset+int64(from*size)); err != nil &&
			!errors.Is(err, io.EOF) {
			return err
		}
		if err := r.Put(Run{Task: task, Address: address + uint64(from*size), Pages: uint32(to - from)},
			data); err != nil {
			return err
		}
		if err := s.punch(one, from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// fileOf returns the file of a slot.
func (s *Store) fileOf(one *slot) *os.File {
	if one.object != nil {
		return one.object.file
	}
	return s.file
}
