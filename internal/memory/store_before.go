package memory

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Before is the store's earlier content of remote pages, to which changes may be sent. It lies in the image
// where each page will be put, so a page can be read only until it is put. It is for concurrent use.
type Before struct {
	file  *os.File
	slots map[Task]map[uint64]beforeSlot
}

type beforeSlot struct {
	offset int64
	had    mask
}

// ReadPage reads the earlier content of a page; false if there was none, or it is unknown.
func (b *Before) ReadPage(task Task, address uint64, page []byte) (bool, error) {
	one, found := b.slots[task][address-address%slotBytes]
	index := int(address % slotBytes / uint64(PageSize()))
	if !found || !one.had.has(index) {
		return false, nil
	}
	n, err := b.file.ReadAt(page[:PageSize()], one.offset+int64(index*PageSize()))
	return n == PageSize(), err
}

// Close frees the image's memory, unless others use it.
func (b *Before) Close() error { return b.file.Close() }

// Before returns, once, what the store had of remote pages when it was sealed, or nil if it had nothing of
// them. The caller closes it.
func (s *Store) Before() *Before {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.before
	s.before = nil
	return before
}

// keepBefore records what the store has of remote pages. The caller holds the lock.
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

// closeBefore closes it if nobody has taken it.
func (s *Store) closeBefore() error {
	if s.before == nil {
		return nil
	}
	err := s.before.Close()
	s.before = nil
	return err
}
