package memory

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Before is what a store had of pages that come later: what is sent of them may be how they
// changed. It lies in the image, where each page will be put, so reading a page is for when it has
// not been. It is for concurrent use.
type Before struct {
	file  *os.File
	slots map[Task]map[uint64]beforeSlot
}

type beforeSlot struct {
	offset int64
	had    mask
}

// ReadPage reads what there was of a page; false if there was nothing, or it is not known.
func (b *Before) ReadPage(task Task, address uint64, page []byte) (bool, error) {
	one, found := b.slots[task][address-address%slotBytes]
	index := int(address % slotBytes / uint64(PageSize()))
	if !found || !one.had.has(index) {
		return false, nil
	}
	n, err := b.file.ReadAt(page[:PageSize()], one.offset+int64(index*PageSize()))
	return n == PageSize(), err
}

// Close gives the image's memory back, as far as nobody else needs it.
func (b *Before) Close() error { return b.file.Close() }

// Before gives what the store had of remote pages when it was sealed, once, or nil if it had nothing
// of them. The caller closes it.
func (s *Store) Before() *Before {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.before
	s.before = nil
	return before
}

// keepBefore notes what the store has of remote pages. The caller holds the lock.
func (s *Store) keepBefore() error {
	slots := map[Task]map[uint64]beforeSlot{}
	for task, all := range s.tasks {
		for address, one := range all {
			if one.had == (mask{}) {
				continue
			}
			if slots[task] == nil {
				slots[task] = map[uint64]beforeSlot{}
			}
			slots[task][address] = beforeSlot{offset: one.offset, had: one.had}
		}
	}
	if len(slots) == 0 {
		return nil
	}
	fd, err := unix.FcntlInt(s.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("keep what there was of remote pages: %w", err)
	}
	s.before = &Before{file: os.NewFile(uintptr(fd), "pages"), slots: slots}
	return nil
}

// closeBefore is for when nobody has taken it.
func (s *Store) closeBefore() error {
	if s.before == nil {
		return nil
	}
	err := s.before.Close()
	s.before = nil
	return err
}
